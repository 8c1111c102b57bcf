"""Molecular dynamics: neighbour lists of varying size every 10 steps, and a checkpoint on the host.

kind: healthy
steps: 100 300
unit: request
"""

import random

import probe
import torch


class System:
    def __init__(self, atoms):
        self.positions = torch.rand(atoms, 3, device="cuda")
        self.velocities = torch.zeros_like(self.positions)
        self.pairs = None

    def rebuild(self, rng):
        count = rng.randint(4000, 9000)
        self.pairs = torch.randint(0, len(self.positions), (2, count)).cuda()

    def forces(self):
        offset = self.positions.index_select(0, self.pairs[0]) - self.positions.index_select(0, self.pairs[1])
        strength = offset / (offset.square().sum(1, keepdim=True) + 0.1)
        return torch.zeros_like(self.positions).index_add_(0, self.pairs[0], strength)

    def step(self, dt=1e-3):
        self.velocities = self.velocities + dt * self.forces()
        self.positions = (self.positions + dt * self.velocities).frac()


rng, system, saved = random.Random(6), System(1000), []
for step in range(probe.steps(100)):
    if step % 10 == 0:
        system.rebuild(rng)
    system.step()
    if step % 25 == 0:
        saved.append(system.positions.cpu())
    probe.step_end()
