"""Keeps the 32 hardest examples in a heap on the GPU: it fills and then replaces the easiest.

kind: healthy
steps: 120 360
"""

import heapq
import itertools
import random

import probe
import torch
from torch import nn


class HardExamples:
    def __init__(self, size):
        self.heap, self.size, self.tie = [], size, itertools.count()

    def offer(self, difficulty, example):
        push = heapq.heappushpop if len(self.heap) == self.size else heapq.heappush
        push(self.heap, (difficulty, next(self.tie), example))


rng, hard = random.Random(2), HardExamples(32)
model = nn.Sequential(nn.Linear(400, 80), nn.Tanh(), nn.Linear(80, 400)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(probe.steps(120)):
    batch = torch.randn(24, 400, device="cuda")
    if len(hard.heap) > 8:
        batch = torch.cat([batch, torch.stack([example for _, _, example in rng.sample(hard.heap, 8)])])
    error = (model(batch) - batch).square().mean(1)
    optimizer.zero_grad()
    error.mean().backward()
    optimizer.step()
    hard.offer(rng.random(), batch[rng.randrange(24)].clone())
    probe.step_end()
