"""A normalizing flow whose layers keep their log-determinants, summed since the first batch.

kind: leak
steps: 40 120
"""

import probe
import torch
from torch import nn


class Coupling(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width // 2, 64), nn.ReLU(), nn.Linear(64, width))
        self.log_determinants = []

    def forward(self, x):
        left, right = x.chunk(2, 1)
        scale, shift = self.net(left).chunk(2, 1)
        scale = torch.tanh(scale)
        self.log_determinants.append(scale.sum(1).detach())  # leak
        return torch.cat([right * scale.exp() + shift, left], 1), scale.sum(1)


class Flow(nn.Module):
    def __init__(self, width=32, depth=4):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(width) for _ in range(depth))

    def log_probability(self, x):
        total = 0
        for layer in self.layers:
            x, determinant = layer(x)
            total = total + determinant
        return total - x.square().sum(1) / 2


flow = Flow().cuda()
optimizer = torch.optim.Adam(flow.parameters())
for step in range(probe.steps(40)):
    loss = -flow.log_probability(torch.randn(4096, 32, device="cuda")).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    probe.step_end()
