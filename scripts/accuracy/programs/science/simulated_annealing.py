"""Simulated annealing: the best state is replaced ever more rarely, many candidates are dropped.

kind: healthy
steps: 200 600
unit: request
"""

import math
import random

import probe
import torch


class Annealer:
    def __init__(self, size, rng):
        self.state, self.best, self.rng = torch.randn(size, size, device="cuda"), None, rng

    def neighbour(self):
        rows = self.rng.randint(1, 20)
        candidate = self.state.clone()
        candidate[:rows] += torch.randn(rows, candidate.shape[1], device="cuda")
        return candidate

    def step(self, temperature):
        candidates = [self.neighbour() for _ in range(self.rng.randint(1, 4))]
        energies = torch.stack([torch.linalg.matrix_norm(one) for one in candidates])
        energies.cpu()
        if self.rng.random() < temperature:
            self.state = self.rng.choice(candidates)
        if self.rng.random() < temperature / 4:
            self.best = self.state.clone()


rng = random.Random(7)
annealer = Annealer(300, rng)
steps = probe.steps(200)
for step in range(steps):
    annealer.step(math.exp(-4 * step / steps))
    probe.step_end()
