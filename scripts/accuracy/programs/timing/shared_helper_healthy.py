"""Fifty callers churn through one helper and keep different amounts for a few steps each.

kind: healthy
steps: 100 300
check: no
"""

import random
from collections import deque

import probe
import torch
from torch import nn


def buffer(size):
    return torch.empty(size, device="cuda")


class Consumer:
    def __init__(self, rng):
        self.kept = deque(maxlen=rng.randint(1, 5))
        self.size = rng.randint(100, 400_000)

    def use(self, rng):
        if rng.random() < 0.5:
            self.kept.append(buffer(rng.randint(self.size // 2, self.size)))


rng = random.Random(2)
consumers = [Consumer(rng) for _ in range(50)]
model = nn.Linear(10, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(probe.steps(100)):
    for consumer in rng.sample(consumers, 10):
        consumer.use(rng)
    optimizer.zero_grad()
    model(torch.randn(8, 10, device="cuda")).sum().backward()
    optimizer.step()
    probe.step_end()
