"""Six stages, each with a loop of its own; all note their worst examples through one method.

kind: leak
steps: 48 144
rate: 65536
"""

import probe
import torch
from torch import nn


class Run:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128)).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.worst = []

    def update(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def note_worst(self, x, losses):
        self.worst.append(x[losses.topk(128).indices])  # leak

    def step(self, x, target):
        losses = (self.model(x) - target).square().mean(1)
        self.update(losses.mean())
        self.note_worst(x, losses.detach())
        probe.step_end()

    def warm_up(self, steps):
        for _ in range(steps):
            x = torch.randn(256, 128, device="cuda")
            self.step(x, x)

    def denoise(self, steps):
        for _ in range(steps):
            x = torch.randn(256, 128, device="cuda")
            self.step(x + 0.1 * torch.randn_like(x), x)

    def inpaint(self, steps):
        for _ in range(steps):
            x = torch.randn(256, 128, device="cuda")
            self.step(x * (torch.rand_like(x) > 0.5), x)

    def permute(self, steps):
        for _ in range(steps):
            x = torch.randn(256, 128, device="cuda")
            self.step(x.flip(1).contiguous(), x)

    def mix(self, steps):
        for _ in range(steps):
            x, y = torch.randn(2, 256, 128, device="cuda").unbind()
            self.step(0.7 * x + 0.3 * y, x)

    def cool_down(self, steps):
        for group in self.optimizer.param_groups:
            group["lr"] = 1e-5
        for _ in range(steps):
            x = torch.randn(256, 128, device="cuda")
            self.step(x, torch.zeros_like(x))


run = Run()
per_stage = probe.steps(48) // 6
for stage in (run.warm_up, run.denoise, run.inpaint, run.permute, run.mix, run.cool_down):
    stage(per_stage)
