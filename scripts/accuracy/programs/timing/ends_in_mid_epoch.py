"""Predictions of an epoch are kept until its end; epochs get longer, and the run ends within one.

kind: healthy
steps: 110 300
check: no
"""

import probe
import torch
from torch import nn


class EpochMetric:
    def __init__(self):
        self.predictions = []

    def update(self, logits):
        self.predictions.append(logits.detach())

    def compute(self):
        value = torch.cat(self.predictions).argmax(1).float().mean().item()
        self.predictions.clear()
        return value


metric, left, epoch = EpochMetric(), 20, 0
model = nn.Linear(128, 1000).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
for step in range(probe.steps(110)):
    logits = model(torch.randn(64, 128).cuda())
    loss = nn.functional.cross_entropy(logits, torch.zeros(64, dtype=torch.long).cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    metric.update(logits)
    left -= 1
    if left == 0:
        metric.compute()
        epoch += 1
        left = 20 + 5 * epoch
    probe.step_end()
