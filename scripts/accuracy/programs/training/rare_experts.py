"""A mixture of experts that routes whole batches: an expert's gradient and Adam state come late.

kind: healthy
steps: 80 240
"""

import random

import probe
import torch
from torch import nn


class Experts(nn.Module):
    def __init__(self, count=6, width=256):
        super().__init__()
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, 512), nn.ReLU(), nn.Linear(512, width)) for _ in range(count))

    def forward(self, x, index):
        return x + self.experts[index](x)


def main():
    rng = random.Random(3)
    model = Experts().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(probe.steps(80)):
        # Zipf-like: the last expert gets a batch in twenty.
        index = rng.choices(range(6), weights=[1 / (rank + 1) for rank in range(6)])[0]
        loss = model(torch.randn(32, 256, device="cuda"), index).pow(2).mean()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        probe.step_end()


main()
