"""A k-nearest-neighbour bank, extended by `torch.cat` at each step and searched by the next.

kind: growing
steps: 60 200
"""

import probe
import torch
from torch import nn


class Bank:
    def __init__(self, width):
        self.features = torch.zeros(0, width, device="cuda")

    def add(self, features):
        self.features = torch.cat([self.features, features])

    def distance(self, queries, neighbours=5):
        return torch.cdist(queries, self.features).topk(neighbours, largest=False).values.mean(1)


def main():
    model, bank = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32)).cuda(), Bank(32)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(probe.steps(60)):
        features = model(torch.randn(256, 64, device="cuda"))
        optimizer.zero_grad()
        features.square().mean().backward()
        optimizer.step()
        bank.add(features.detach())
        bank.distance(torch.randn(8, 32, device="cuda"))
        probe.step_end()


main()
