"""One line makes temporaries and a moving average, which replaces the last one: nothing stays.

kind: healthy
steps: 40 120
"""

import probe
import torch
from torch import nn


class MovingMaps:
    def __init__(self):
        self.average = None

    @torch.no_grad()
    def add(self, maps):
        self.average = (0.99 * self.average if self.average is not None else maps.clone()) + 0.01 * maps.abs()


moving = MovingMaps()
model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(probe.steps(40)):
    maps = model(torch.rand(4, 3, 64, 64, device="cuda"))
    optimizer.zero_grad()
    maps.std().backward()
    optimizer.step()
    moving.add(maps)
    probe.step_end()
