"""Stochastic weight averaging that starts at 40% of the run: a copy of the weights comes once.

kind: healthy
steps: 50 150
"""

import probe
import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel

steps = probe.steps(50)
model = nn.Sequential(nn.Linear(300, 300), nn.BatchNorm1d(300), nn.ReLU(), nn.Linear(300, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
averaged = None
for step in range(steps):
    if step == steps * 2 // 5:
        averaged = AveragedModel(model)
        scheduler = SWALR(optimizer, swa_lr=0.05)
    loss = nn.functional.cross_entropy(model(torch.randn(100, 300).cuda()), torch.zeros(100, dtype=torch.long).cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if averaged:
        averaged.update_parameters(model)
        scheduler.step()
    probe.step_end()
