"""A large leak each 6 steps and a small one each step, with different lines and owners.

kind: leak
steps: 72 240
every: 6
"""

import probe
import torch
from torch import nn


class Monitor:
    def __init__(self):
        self.outliers, self.snapshots = [], []

    def every_step(self, gradient):
        self.outliers.append(gradient.abs().amax(0))  # leak-or

    def sometimes(self, model):
        self.snapshots.append(nn.utils.parameters_to_vector(model.parameters()).detach())  # leak


monitor = Monitor()
model = nn.Linear(700, 700).cuda()
optimizer = torch.optim.Adam(model.parameters(), weight_decay=0.1)
for step in range(probe.steps(72)):
    model(torch.randn(32, 700, device="cuda")).tanh().mean().backward()
    monitor.every_step(model.weight.grad)
    if step % 6 == 5:
        monitor.sometimes(model)
    optimizer.step()
    optimizer.zero_grad()
    probe.step_end()
