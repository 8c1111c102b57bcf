"""Pins each batch for a fast copy and keeps the pinned tensor: page-locked host memory grows.

kind: leak
steps: 50 150
rate: 2097152
check: no
"""

import probe
import torch
from torch import nn

staged = []


def to_gpu(batch):
    pinned = batch.pin_memory()  # leak
    staged.append(pinned)
    probe.hold(pinned.nbytes)
    return pinned.cuda(non_blocking=True)


def main():
    model = nn.Linear(1024, 4).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(probe.steps(50)):
        batch = to_gpu(torch.zeros(512, 1024))
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
        probe.step_end()


main()
