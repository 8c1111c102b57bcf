"""A DataLoader with `pin_memory=True` over sequences of random lengths; each is freed after use.

kind: healthy
steps: 80 240
"""

import random

import probe
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Recordings(IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        rng = random.Random(9)
        for _ in range(self.count):
            yield torch.zeros(8, 16, rng.randint(200, 2000))


def main(steps):
    loader = DataLoader(Recordings(steps), batch_size=None, pin_memory=True)
    model = nn.Sequential(nn.Conv1d(16, 32, 7, stride=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 5)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for recording in loader:
        out = model(recording.to("cuda", non_blocking=True))
        optimizer.zero_grad()
        out.logsumexp(1).mean().backward()
        optimizer.step()
        probe.step_end()


main(probe.steps(80))
