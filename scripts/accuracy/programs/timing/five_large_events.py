"""A checkpoint of 24 MB is kept on the GPU at each of the run's five evaluations.

kind: leak
steps: 50
every: 10
limit: five leak events are too few: it is a possible leak
"""

import probe
import torch
from torch import nn


class BestWeights:
    def __init__(self):
        self.history = []

    def offer(self, model, score):
        weights = {name: value.clone() for name, value in model.state_dict().items()}  # leak
        self.history.append((score, weights))


def main(steps):
    best = BestWeights()
    model = nn.Sequential(nn.Linear(1000, 3000), nn.ReLU(), nn.Linear(3000, 1000)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.randn(16, 1000, device="cuda")).mean().backward()
        optimizer.step()
        if step % 10 == 9:
            best.offer(model, score=step)
        probe.step_end()


main(probe.steps(50))
