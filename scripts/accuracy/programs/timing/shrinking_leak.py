"""A pruning run: each step keeps a mask of what remains, so the leaked blocks get smaller.

kind: leak
steps: 60 160
rate: varies
"""

import probe
import torch
from torch import nn


class Pruner:
    def __init__(self, steps):
        self.masks, self.steps = [], steps

    def prune(self, weight, step):
        rows = max(8, int(weight.shape[0] * (1 - 0.8 * step / self.steps)))
        self.masks.append(weight[:rows].abs() > 0.01)  # leak
        return rows


def main():
    steps = probe.steps(60)
    pruner, layer = Pruner(steps), nn.Linear(512, 1024).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for step in range(steps):
        rows = pruner.prune(layer.weight.detach(), step)
        hidden = nn.functional.linear(torch.randn(16, 512, device="cuda"), layer.weight[:rows], layer.bias[:rows])
        optimizer.zero_grad()
        hidden.mean().backward()
        optimizer.step()
        probe.step_end()


main()
