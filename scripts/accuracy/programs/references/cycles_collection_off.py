"""Turns the garbage collector off for speed; each step's state object refers to itself.

kind: leak
steps: 50 150
collect: no
"""

import gc

import probe
import torch
from torch import nn


class StepState:
    def __init__(self, batch):
        self.batch = batch
        self.callbacks = [self.describe]
        self.output = None

    def describe(self):
        return tuple(self.batch.shape)


def main(steps):
    gc.disable()
    model = nn.Conv1d(4, 16, 5).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-4)
    for _ in range(steps):
        state = StepState(torch.randn(64, 4, 1000).cuda())  # leak
        state.output = model(state.batch).mean()
        optimizer.zero_grad()
        state.output.backward()
        optimizer.step()
        probe.step_end()


main(probe.steps(50))
