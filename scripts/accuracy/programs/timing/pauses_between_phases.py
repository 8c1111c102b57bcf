"""Rounds of training and of searching; only the search keeps memory, so growth pauses and returns.

kind: leak
steps: 120 360
every: 24
limit: few events, with pauses of a third of the run between them: it is a possible leak
"""

import probe
import torch
from torch import nn

candidates = []


def train(model, optimizer, steps):
    for _ in range(steps):
        x = torch.randn(64, 48, device="cuda")
        optimizer.zero_grad()
        model(x).std().backward()
        optimizer.step()
        probe.step_end()


@torch.no_grad()
def search(model, steps):
    for _ in range(steps):
        pool = torch.randn(2000, 48, device="cuda")
        scores = model(pool).flatten()
        candidates.append(pool[scores.topk(100).indices])  # leak
        probe.step_end()


def main():
    model = nn.Sequential(nn.Linear(48, 256), nn.CELU(), nn.Linear(256, 1)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(probe.steps(120) // 24):
        train(model, optimizer, 16)
        search(model, 8)


main()
