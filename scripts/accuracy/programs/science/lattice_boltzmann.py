"""A lattice-Boltzmann solver: 38 equal fields are allocated, then a few steps work in place.

kind: healthy
steps: 5 40
unit: request
"""

import probe
import torch


class Lattice:
    """D3Q19: a field for each of 19 directions, and one more to stream into."""

    def __init__(self, side=64):
        self.fields = [torch.ones(side, side, side, device="cuda") for _ in range(19)]
        self.streamed = [torch.empty_like(field) for field in self.fields]

    def step(self, relaxation=0.6):
        density = torch.zeros_like(self.fields[0])
        for field in self.fields:
            density += field
        for index, (field, target) in enumerate(zip(self.fields, self.streamed)):
            target.copy_(torch.roll(field, 1 - index % 3, index // 3 % 3))
            target.sub_(density, alpha=relaxation / 19)
        self.fields, self.streamed = self.streamed, self.fields


lattice = Lattice()
for step in range(probe.steps(5)):
    lattice.step()
    probe.step_end()
print(lattice.fields[0].mean().item())
