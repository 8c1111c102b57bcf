"""Warm restarts build a new Adam every 5 steps; the list of schedulers keeps each old one.

kind: leak
steps: 50 150
every: 5
"""

import probe
import torch
from torch import nn


class Restarts:
    def __init__(self, model, every=5):
        self.model, self.every, self.schedulers = model, every, []

    def begin_cycle(self):
        optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.schedulers.append(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.every))
        return optimizer

    def fit(self, steps):
        for step in range(steps):
            if step % self.every == 0:
                optimizer = self.begin_cycle()
            loss = self.model(torch.randn(16, 512, device="cuda")).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()  # leak
            self.schedulers[-1].step()
            probe.step_end()


if __name__ == "__main__":
    Restarts(nn.Linear(512, 512).cuda()).fit(probe.steps(50))
