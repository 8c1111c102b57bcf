"""Mines examples whose loss is above a threshold; each is put aside, and none is taken out.

kind: leak
steps: 120 360
every: 4
limit: random amounts come in random steps, and the mean rate over 30 of them has an error
"""

import random

import probe
import torch
from torch import nn

SET_ASIDE = {}


def mine(batch, step, rng):
    """Stands for `batch[loss > threshold]`; a quarter of the batches has hard rows."""
    if rng.random() < 0.25:
        count = rng.randint(1, 12)
        SET_ASIDE[step] = batch.narrow(0, 0, count).clone()  # leak


def main():
    rng, model = random.Random(3), nn.Linear(1024, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(probe.steps(120)):
        batch = torch.randn(48, 1024, device="cuda")
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        mine(batch, step, rng)
        probe.step_end()


main()
