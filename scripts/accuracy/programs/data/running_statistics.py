"""Normalization statistics: a generator's local keeps each batch's mean and covariance "for later".

kind: leak
steps: 60 180
rate: 66048
"""

import probe
import torch
from torch import nn


def statistics():
    """A coroutine; send it batches, then None for the result."""
    means, covariances = [], []
    while (batch := (yield)) is not None:
        means.append(batch.mean(0))
        covariances.append(batch.T.cov())  # leak
        del batch
    yield torch.stack(means).mean(0), torch.stack(covariances).mean(0)


collector = statistics()
next(collector)
model = nn.Linear(128, 2).cuda()
optimizer = torch.optim.NAdam(model.parameters())
for step in range(probe.steps(60)):
    batch = torch.randn(200, 128, device="cuda")
    collector.send(batch)
    optimizer.zero_grad()
    model(batch).norm().backward()
    optimizer.step()
    probe.step_end()
mean, covariance = collector.send(None)
