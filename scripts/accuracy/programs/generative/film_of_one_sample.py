"""Denoises two samples in 60 levels each; all levels of a sample stay on the GPU for its film.

kind: healthy
steps: 2 6
unit: request
"""

import probe
import torch
from torch import nn


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(4, 24, 3, padding=1), nn.SiLU(), nn.Conv2d(24, 3, 3, padding=1))

    def forward(self, x, level):
        noise = torch.full_like(x[:, :1], level)
        return self.body(torch.cat([x, noise], 1))


@torch.no_grad()
def film(denoiser, levels=60):
    x, frames = torch.randn(4, 3, 64, 64, device="cuda"), []
    for level in range(levels):
        x = x - denoiser(x, level / levels) / levels
        frames.append(x)
    return torch.stack(frames).mul(255).to(torch.uint8).cpu()


denoiser = Denoiser().cuda()
for sample in range(probe.steps(2)):
    print(film(denoiser).shape)
    probe.step_end()
