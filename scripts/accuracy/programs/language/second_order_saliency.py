"""Saliency by `create_graph=True` for a penalty; the saliency maps are kept with their graphs.

kind: leak
steps: 40 120
"""

import probe
import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 2))

    def forward(self, embedded):
        return self.body(embedded).mean(1)  # leak-or


class Explainer:
    def __init__(self):
        self.maps = []

    def saliency(self, score, embedded):
        grad, = torch.autograd.grad(score.sum(), embedded, create_graph=True)
        self.maps.append(grad)
        return grad.norm(dim=-1).mean()


def main():
    embed, model, explainer = nn.Embedding(900, 64).cuda(), Classifier().cuda(), Explainer()
    optimizer = torch.optim.Adam([*embed.parameters(), *model.parameters()])
    for _ in range(probe.steps(40)):
        embedded = embed(torch.zeros(16, 30, dtype=torch.long, device="cuda"))
        score = model(embedded)  # leak
        penalty = explainer.saliency(score, embedded)  # leak-or
        optimizer.zero_grad()
        (score.square().mean() + penalty).backward(retain_graph=True)
        optimizer.step()
        probe.step_end()


main()
