"""Diffusion sampling that appends each intermediate image to a global, "for the animation".

kind: leak
steps: 20 60
unit: request
"""

import random

import probe
import torch
from torch import nn

frames = []


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(4, 32, 3, padding=1), nn.SiLU(), nn.Conv2d(32, 3, 3, padding=1))

    def forward(self, x, t):
        return self.net(torch.cat([x, torch.full_like(x[:, :1], t)], 1))


@torch.no_grad()
def sample(model, count, size, steps):
    x = torch.randn(count, 3, size, size, device="cuda")
    for t in range(steps, 0, -1):
        noise = model(x, t / steps)
        x = (x - noise / steps) / (1 - 1 / (2 * steps))  # leak
        if t % 5 == 0:
            frames.append(x)
    return x.clamp(-1, 1).cpu()


rng, model = random.Random(3), Denoiser().cuda().eval()
for picture in range(probe.steps(20)):
    sample(model, rng.randint(1, 4), 32, rng.choice([20, 30, 50]))
    probe.step_end()
