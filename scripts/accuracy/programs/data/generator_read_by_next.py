"""A generator is read by `next(stream)` in a `while` loop and keeps batches for a second epoch.

kind: leak
steps: 40 150
rate: 131072
"""

import probe
import torch
from torch import nn


class Stream:
    def __init__(self):
        self.first_epoch = []

    def __iter__(self):
        while True:
            batch = torch.randn(128, 256, device="cuda")  # leak
            self.first_epoch.append(batch)
            yield batch


def main(steps):
    model = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 256)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    stream, done = iter(Stream()), 0
    while done < steps:
        batch = next(stream)
        optimizer.zero_grad()
        (model(batch) - batch).square().mean().backward()
        optimizer.step()
        done += 1
        probe.step_end()


main(probe.steps(40))
