"""Healthy for two thirds of the run; then a debugging switch keeps attention maps.

kind: leak
steps: 90 240
from: 0.75
"""

import probe
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(64, 192)
        self.debug, self.maps = False, []

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = (q @ k.mT / 8).softmax(-1)  # leak
        if self.debug:
            self.maps.append(weights.detach())
        return weights @ v


steps = probe.steps(90)
model = Attention().cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(steps):
    model.debug = step >= steps * 2 // 3
    x = torch.randn(8, 64, 64, device="cuda")
    optimizer.zero_grad()
    (model(x) - x).abs().mean().backward()
    optimizer.step()
    probe.step_end()
