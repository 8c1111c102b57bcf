"""Population based training: the worst of eight members is replaced by a mutated copy of the best.

kind: healthy
steps: 64 200
"""

import copy
import random

import probe
import torch
from torch import nn


class Member:
    def __init__(self, model, rate):
        self.model, self.rate, self.score = model, rate, 0.0
        self.optimizer = torch.optim.Adam(model.parameters(), lr=rate)

    def mutated(self, rng):
        return Member(copy.deepcopy(self.model), self.rate * rng.choice([0.8, 1.25]))


rng = random.Random(8)
population = [Member(nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 8)).cuda(), 1e-3) for _ in range(8)]
for step in range(probe.steps(64)):
    member = population[step % 8]
    member.optimizer.zero_grad()
    member.model(torch.randn(32, 32, device="cuda")).square().mean().backward()
    member.optimizer.step()
    member.score = rng.random()
    if step % 8 == 7:
        population.sort(key=lambda one: one.score)
        population[0] = population[-1].mutated(rng)
    del member
    probe.step_end()
