"""Accumulates over more and more micro-batches; their outputs are kept until the optimizer step.

kind: healthy
steps: 20 40 120
"""

import probe
import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 1024), nn.Tanh(), nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)


def micro_batches(step):
    """Enlarges the batch at every step up to 32 micro-batches, as large-batch recipes do."""
    return min(32, 1 + step)


for step in range(probe.steps(40)):
    pending, count = [], micro_batches(step)
    for _ in range(count):
        x = torch.randn(64, 256, device="cuda")
        out = model(x)
        nn.functional.mse_loss(out, x).div(count).backward()
        pending.append(out.detach())
    statistics = torch.stack(pending).std(0)
    optimizer.step()
    optimizer.zero_grad()
    pending.clear()
    probe.step_end()
