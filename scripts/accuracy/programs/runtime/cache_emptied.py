"""Calls `empty_cache()` and `gc.collect()` each step out of caution: segments come and go.

kind: healthy
steps: 40 120
"""

import gc
import random

import probe
import torch
from torch import nn

rng = random.Random(3)
model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 3, 3)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(probe.steps(40)):
    side = rng.choice([64, 96, 160, 224])
    images = torch.rand(4, 3, side, side).cuda()
    loss = model(images).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    del images, loss
    gc.collect()
    torch.cuda.empty_cache()
    probe.step_end()
