"""Objects are born and die at random with equal rates: memory wanders, and nothing leaks.

kind: healthy
steps: 200 600
check: no
"""

import random

import probe
import torch
from torch import nn

rng = random.Random(4)
alive = [torch.zeros(rng.randint(1000, 60_000), device="cuda") for _ in range(40)]
model = nn.Linear(32, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(probe.steps(200)):
    for _ in range(3):
        if rng.random() < 0.5 * len(alive) / 40:
            alive.pop(rng.randrange(len(alive)))
        if rng.random() < 0.5:
            alive.append(torch.zeros(rng.randint(1000, 60_000), device="cuda"))
    optimizer.zero_grad()
    model(torch.randn(4, 32, device="cuda")).mean().backward()
    optimizer.step()
    probe.step_end()
