"""CycleGAN's image pool with an inverted condition: it never counts as full.

kind: leak
steps: 50 150
"""

import random

import probe
import torch
from torch import nn


class ImagePool:
    def __init__(self, size, rng):
        self.size, self.images, self.rng = size, [], rng

    def query(self, image):
        if len(self.images) < self.size or self.rng.random() < 0.5:
            # Should replace an old image once the pool is full.
            self.images.append(image)
            return image
        return self.rng.choice(self.images)


def conv(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.InstanceNorm2d(outputs), nn.ReLU())


generator = nn.Sequential(conv(3, 16), conv(16, 16), nn.Conv2d(16, 3, 1), nn.Tanh()).cuda()
critic = nn.Sequential(conv(3, 16), nn.Conv2d(16, 1, 4)).cuda()
optimizers = [torch.optim.Adam(model.parameters(), betas=(0.5, 0.999)) for model in (generator, critic)]
pool = ImagePool(1000, random.Random(1))
for step in range(probe.steps(50)):
    real = torch.rand(1, 3, 64, 64, device="cuda")
    fake = generator(real)  # leak
    optimizers[0].zero_grad()
    (critic(fake) - 1).square().mean().backward()
    optimizers[0].step()
    optimizers[1].zero_grad()
    (critic(pool.query(fake.detach())).square().mean() + (critic(real) - 1).square().mean()).backward()
    optimizers[1].step()
    probe.step_end()
