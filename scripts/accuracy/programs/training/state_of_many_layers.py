"""A smoke test: three steps of AdamW over 60 equal layers. Its state comes with the first step.

kind: healthy
steps: 3 9
"""

import probe
import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x + torch.relu(self.linear(x))


model = nn.Sequential(*(Residual() for _ in range(60))).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(probe.steps(3)):
    loss = model(torch.randn(32, 256, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    probe.step_end()
