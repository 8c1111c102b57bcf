"""The same growth done well: a table with spare rows that doubles when it is full.

kind: healthy
steps: 80 240
check: no
"""

import probe
import torch
from torch import nn


class GrowingTable:
    def __init__(self, rows=256, width=64):
        self.weight, self.used = nn.Parameter(torch.zeros(rows, width, device="cuda")), 0
        self.rebuild()

    def rebuild(self):
        self.optimizer = torch.optim.SGD([self.weight], lr=0.1, momentum=0.9)

    def add(self, count):
        self.used += count
        while self.used > len(self.weight):
            bigger = torch.zeros(2 * len(self.weight), self.weight.shape[1], device="cuda")
            bigger[:len(self.weight)] = self.weight.detach()
            self.weight = nn.Parameter(bigger)
            self.rebuild()


table = GrowingTable()
for step in range(probe.steps(80)):
    table.add(40)
    rows = table.weight[:table.used]
    table.optimizer.zero_grad()
    rows.square().sum().backward()
    table.optimizer.step()
    del rows
    probe.step_end()
