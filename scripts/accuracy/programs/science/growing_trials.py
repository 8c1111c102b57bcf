"""A search over widths, smallest first: each trial's model replaces a smaller one.

kind: growing
steps: 60 180
"""

import probe
import torch
from torch import nn


def trial(width):
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)).cuda()
    return model, torch.optim.Adam(model.parameters())


def main(steps, per_trial=5):
    best = None
    for step in range(steps):
        if step % per_trial == 0:
            model, optimizer = trial(64 + 32 * (step // per_trial))
        loss = model(torch.randn(32, 64, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        best = loss.item() if best is None else min(best, loss.item())
        probe.step_end()
    print(best)


main(probe.steps(60))
