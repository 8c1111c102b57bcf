"""The same pool with its limit of 20 images, a WGAN with weight clipping, five critic steps.

kind: healthy
steps: 80 240
"""

import random

import probe
import torch
from torch import nn


class Pool(list):
    def exchange(self, image, rng, limit=20):
        if len(self) < limit:
            self.append(image)
            return image
        index = rng.randrange(limit)
        self[index], image = image, self[index]
        return image


def main():
    rng, pool = random.Random(2), Pool()
    generator = nn.Sequential(nn.ConvTranspose2d(64, 32, 4), nn.ReLU(), nn.ConvTranspose2d(32, 3, 4, 4)).cuda()
    critic = nn.Sequential(nn.Conv2d(3, 32, 4, 4), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(512, 1)).cuda()
    slow, fast = (torch.optim.RMSprop(model.parameters(), lr=5e-5) for model in (generator, critic))
    for step in range(probe.steps(80)):
        with torch.no_grad():
            fake = generator(torch.randn(16, 64, 1, 1, device="cuda"))
        score = critic(pool.exchange(fake, rng)).mean() - critic(torch.rand(16, 3, 16, 16, device="cuda")).mean()
        fast.zero_grad()
        score.backward()
        fast.step()
        nn.utils.clip_grad_value_(critic.parameters(), 0.01)
        if step % 5 == 4:
            slow.zero_grad()
            critic(generator(torch.randn(16, 64, 1, 1, device="cuda"))).mean().neg().backward()
            slow.step()
        probe.step_end()


main()
