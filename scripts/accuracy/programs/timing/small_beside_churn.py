"""A helper serves many callers; one of them keeps 4 KiB a step of what it gets.

kind: leak
steps: 60 200
rate: 4096
"""

import random

import probe
import torch
from torch import nn

calibration = []


def noise(*shape):
    return torch.randn(*shape, device="cuda")


def augment(batch, rng):
    for _ in range(rng.randint(2, 12)):
        batch = batch + 0.1 * noise(*batch.shape)
    return batch


def remember_scale():
    calibration.append(noise(1024))  # leak


rng = random.Random(1)
model = nn.Linear(1000, 1000).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(probe.steps(60)):
    batch = augment(noise(256, 1000), rng)
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    remember_scale()
    probe.step_end()
