"""Diffusion training: U-Net with skips, EMA in place, and a sample of images every 20 steps.

kind: healthy
steps: 60 180
"""

import copy

import probe
import torch
from torch import nn


class UNet(nn.Module):
    def __init__(self, widths=(16, 32, 64)):
        super().__init__()
        self.first = nn.Conv2d(3, widths[0], 3, padding=1)
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in zip(widths, widths[1:]))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * b, a, 2, stride=2) for a, b in reversed(list(zip(widths, widths[1:]))))
        self.last = nn.Conv2d(widths[0], 3, 1)

    def forward(self, x):
        x, skips = self.first(x), []
        for layer in self.down:
            x = nn.functional.silu(layer(x))
            skips.append(x)
        for layer in self.up:
            x = nn.functional.silu(layer(torch.cat([x, skips.pop()], 1)))
        return self.last(x)


@torch.no_grad()
def update(average, model, decay=0.99):
    torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay)


@torch.inference_mode()
def sample(model, steps=8):
    x = torch.randn(4, 3, 32, 32, device="cuda")
    history = [x]
    for _ in range(steps):
        history.append(history[-1] - model(history[-1]) / steps)
    return torch.stack(history).cpu()


model = UNet().cuda()
average = copy.deepcopy(model)
optimizer = torch.optim.Adam(model.parameters())
for step in range(probe.steps(60)):
    images, noise = torch.rand(8, 3, 32, 32, device="cuda"), torch.randn(8, 3, 32, 32, device="cuda")
    t = torch.rand(8, 1, 1, 1, device="cuda")
    optimizer.zero_grad()
    nn.functional.mse_loss(model(images * (1 - t) + noise * t), noise).backward()
    optimizer.step()
    update(average, model)
    if step % 20 == 19:
        sample(average)
    probe.step_end()
