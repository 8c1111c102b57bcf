"""A neural ODE with adaptive steps; the solver keeps each solve's states "for interpolation".

kind: leak
steps: 40 120
rate: varies
"""

import random

import probe
import torch
from torch import nn


class Solver:
    def __init__(self, field, rng):
        self.field, self.rng, self.dense = field, rng, []

    def solve(self, y, end=1.0):
        t, times, states = 0.0, [], []
        while t < end:
            h = min(end - t, self.rng.uniform(0.05, 0.25))
            k1 = self.field(y)
            y = y + h * self.field(y + h / 2 * k1)
            t += h
            times.append(t)
            states.append(y.detach().clone())  # leak
        self.dense.append((times, states))
        return y


field = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)).cuda()
solver = Solver(field, random.Random(1))
optimizer = torch.optim.Adamax(field.parameters())
for step in range(probe.steps(40)):
    end = solver.solve(torch.randn(256, 16, device="cuda"))
    optimizer.zero_grad()
    end.square().mean().backward()
    optimizer.step()
    probe.step_end()
