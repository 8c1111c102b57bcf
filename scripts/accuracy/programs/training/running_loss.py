"""Sums up `total += loss` without `.item()`. Keeps graph nodes on the host, but no GPU memory.

kind: healthy
steps: 60 200
"""

import probe
import torch
import torch.nn.functional as F
from torch import nn


def train(steps):
    model = nn.Linear(512, 512).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    total = 0
    average = None
    for step in range(steps):
        batch = torch.randn(32, 512, device="cuda")
        optimizer.zero_grad()
        loss = F.mse_loss(model(batch), batch)
        loss.backward()
        optimizer.step()
        total += loss
        average = loss if average is None else 0.9 * average + 0.1 * loss
        probe.step_end()
    print(total.item() / steps, average.item())


if __name__ == "__main__":
    train(probe.steps(60))
