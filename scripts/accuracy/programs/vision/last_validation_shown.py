"""Keeps the last validation with its graph, to show gradients of its pictures; one, not a list.

kind: healthy
steps: 30 120
"""

import probe
import torch
from torch import nn


class Monitor:
    """The newest losses are for a dashboard that asks for gradients."""

    def __init__(self):
        self.losses = None

    def validate(self, net, batches=3):
        losses = []
        for _ in range(batches):
            images = torch.rand(16, 3, 48, 48, device="cuda")
            losses.append(net(images).square().mean((1, 2, 3)))
        self.losses = torch.cat(losses)


net = nn.Sequential(nn.Conv2d(3, 24, 3, padding=1), nn.SiLU(), nn.Conv2d(24, 24, 3, padding=1), nn.SiLU(), nn.Conv2d(24, 3, 1)).cuda()
optimizer = torch.optim.Adam(net.parameters())
monitor = Monitor()
for step in range(1, probe.steps(30) + 1):
    loss = nn.functional.l1_loss(net(torch.rand(16, 3, 48, 48, device="cuda")), torch.zeros(16, 3, 48, 48, device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        monitor.validate(net)
    probe.step_end()
