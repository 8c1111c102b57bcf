"""The generator trains alone for 30% of the run; then the discriminator's gradients and state come.

kind: healthy
steps: 40 120
"""

import probe
import torch
from torch import nn


class Adversary:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(784, 512), nn.LeakyReLU(0.2), nn.Linear(512, 512), nn.LeakyReLU(0.2), nn.Linear(512, 1)).cuda()
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=2e-4, betas=(0.5, 0.999))

    def learn(self, real, fake):
        loss = nn.functional.softplus(-self.net(real)).mean() + nn.functional.softplus(self.net(fake)).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def judge(self, fake):
        return nn.functional.softplus(-self.net(fake)).mean()


def main(steps):
    generator, adversary = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 784), nn.Tanh()).cuda(), Adversary()
    optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4)
    for step in range(steps):
        real, fake = torch.rand(64, 784).cuda(), generator(torch.randn(64, 64, device="cuda"))
        loss = nn.functional.mse_loss(fake, real)
        if step >= steps * 3 // 10:
            adversary.learn(real, fake.detach())
            loss = loss + adversary.judge(fake)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        probe.step_end()


main(probe.steps(40))
