"""Rolls out a learned simulator on its own output; only energies are wanted, but gradients are on.

kind: leak
steps: 100 300
unit: request
"""

import probe
import torch
from torch import nn


class Simulator(nn.Module):
    def __init__(self, step=0.01):
        super().__init__()
        self.force, self.step = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 6)), step

    def forward(self, state):
        return state + self.step * self.force(state)  # leak-or


def rollout(simulator, state, steps):
    energies = []
    for _ in range(steps):
        state = simulator(state)  # leak
        energies.append(state.square().mean().item())
        probe.step_end()
    return energies


print(len(rollout(Simulator().cuda(), torch.randn(1024, 6, device="cuda"), probe.steps(100))))
