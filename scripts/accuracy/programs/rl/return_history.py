"""The history of returns is one tensor, extended by `torch.cat`; it stays far below 1 MiB.

kind: growing
steps: 60 200
"""

import probe
import torch
from torch import nn


class Baseline:
    """Normalizes by all returns so far."""

    def __init__(self):
        self.returns = torch.zeros(0, device="cuda")

    def advantage(self, returns):
        self.returns = torch.cat([self.returns, returns])
        return (returns - self.returns.mean()) / (self.returns.std() + 1e-6)


policy, baseline = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 3)).cuda(), Baseline()
optimizer = torch.optim.Adam(policy.parameters())
for step in range(probe.steps(60)):
    states, returns = torch.randn(256, 10, device="cuda"), torch.randn(256, device="cuda")
    loss = -(policy(states).log_softmax(1)[:, 0] * baseline.advantage(returns)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    probe.step_end()
