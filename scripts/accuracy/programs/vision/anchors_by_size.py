"""Anchors cached by size, with multi-scale training: new sizes come ever more rarely.

kind: healthy
steps: 150 400
"""

import functools
import random

import probe
import torch
from torch import nn


@functools.lru_cache(maxsize=64)
def anchors(height, width):
    ys, xs = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([ys, xs], -1).float().cuda()


class Yolo(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, stride=4), nn.LeakyReLU(0.1), nn.Conv2d(16, 2, 1))

    def forward(self, images):
        out = self.body(images).permute(0, 2, 3, 1)
        return out.sigmoid() + anchors(*out.shape[1:3])


rng, model = random.Random(2), Yolo().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(probe.steps(150)):
    size = 32 * rng.randint(3, 9)
    optimizer.zero_grad()
    model(torch.rand(2, 3, size, size, device="cuda")).mean().backward()
    optimizer.step()
    probe.step_end()
