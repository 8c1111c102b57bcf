"""Anchors are cached by the image's scale, a float that random resizing never repeats.

kind: leak
steps: 60 180
"""

import random

import probe
import torch
from torch import nn


class AnchorGenerator:
    def __init__(self):
        self.cache = {}

    def __call__(self, height, width, scale):
        key = (height, width, scale)
        if key not in self.cache:
            rows = torch.arange(height, device="cuda") * scale
            columns = torch.arange(width, device="cuda") * scale
            grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), -1)
            self.cache[key] = torch.cat([grid, grid + scale], -1).flatten(0, 1)  # leak
        return self.cache[key]


class RetinaNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features, self.anchors = nn.Conv2d(3, 4, 3, stride=2), AnchorGenerator()

    def forward(self, image, scale):
        regression = self.features(image)
        anchors = self.anchors(*regression.shape[-2:], scale)
        return regression.flatten(2).mT + anchors


rng, model = random.Random(1), RetinaNet().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
for step in range(probe.steps(60)):
    boxes = model(torch.rand(1, 3, 65, 65, device="cuda"), rng.uniform(0.5, 2))
    optimizer.zero_grad()
    boxes.mean().backward()
    optimizer.step()
    probe.step_end()
