"""Replay in preallocated tensors with a write index: nothing is allocated while it fills.

kind: healthy
steps: 60 200
"""

import random

import probe
import torch
from torch import nn


class Ring:
    def __init__(self, capacity, width):
        self.states = torch.empty(capacity, width, device="cuda")
        self.rewards = torch.empty(capacity, device="cuda")
        self.priorities = torch.zeros(2 * capacity, device="cuda")
        self.capacity, self.next = capacity, 0

    def add(self, state, reward):
        self.states[self.next] = state
        self.rewards[self.next] = reward
        node = self.next + self.capacity
        while node:
            self.priorities[node] += reward
            node //= 2
        self.next = (self.next + 1) % self.capacity


rng, ring = random.Random(5), Ring(1024, 16)
value = nn.Sequential(nn.Linear(16, 64), nn.Mish(), nn.Linear(64, 1)).cuda()
optimizer = torch.optim.SGD(value.parameters(), lr=1e-3)
for step in range(probe.steps(60)):
    ring.add(torch.randn(16, device="cuda"), rng.random())
    index = torch.zeros(32, dtype=torch.long).cuda()
    error = value(ring.states[index]).flatten() - ring.rewards[index]
    optimizer.zero_grad()
    error.abs().mean().backward()
    optimizer.step()
    probe.step_end()
