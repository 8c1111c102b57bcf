"""A progressive GAN: new layers fade in at each resolution and the optimizer gets their parameters.

kind: healthy
steps: 64 192
check: no
"""

import probe
import torch
from torch import nn


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.to_rgb = nn.ModuleList([nn.ConvTranspose2d(32, 32, 4)]), nn.ModuleList([nn.Conv2d(32, 3, 1)])

    def grow(self):
        self.blocks.append(nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()))
        self.to_rgb.append(nn.Conv2d(32, 3, 1))
        return [*self.blocks[-1].cuda().parameters(), *self.to_rgb[-1].cuda().parameters()]

    def forward(self, z, fade):
        x = self.blocks[0](z)
        for block in self.blocks[1:]:
            before, x = x, block(x)
        out = self.to_rgb[-1](x)
        if len(self.blocks) > 1:
            out = fade * out + (1 - fade) * nn.functional.interpolate(self.to_rgb[-2](before), scale_factor=2)
        return out


def main(steps):
    generator = Generator().cuda()
    optimizer = torch.optim.Adam(generator.parameters(), betas=(0.0, 0.99))
    stage = steps // 4
    for step in range(steps):
        if step and step % stage == 0 and step < 4 * stage:
            optimizer.add_param_group({"params": generator.grow()})
        image = generator(torch.randn(8, 32, 1, 1, device="cuda"), fade=min(1.0, 2 * (step % stage) / stage))
        optimizer.zero_grad()
        image.square().mean().backward()
        optimizer.step()
        del image
        probe.step_end()


main(probe.steps(64))
