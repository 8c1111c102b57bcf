"""A DCGAN: two networks and two optimizers."""

import torch
from torch import nn
from training import options

args = options(batch_size=64)
widths = (512, 256, 128, 64)
generator, discriminator = [], []
for inputs, outputs in zip((128, *widths), (*widths, 3)):
    generator += [nn.ConvTranspose2d(inputs, outputs, 4, 1 if inputs == 128 and outputs == 512 else 2, 0 if inputs == 128 and outputs == 512 else 1)]
    generator += [nn.BatchNorm2d(outputs), nn.ReLU(True)] if outputs != 3 else [nn.Tanh()]
for inputs, outputs in zip((3, *reversed(widths)), (*reversed(widths), 1)):
    discriminator += [nn.Conv2d(inputs, outputs, 4, 1 if outputs == 1 else 2, 0 if outputs == 1 else 1)]
    discriminator += [nn.LeakyReLU(0.2, True)] if outputs != 1 else []
generator, discriminator = nn.Sequential(*generator).cuda(), nn.Sequential(*discriminator).cuda()
steps_of = {net: torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999)) for net in (generator, discriminator)}
judge = nn.BCEWithLogitsLoss()


def learn(net, loss):
    steps_of[net].zero_grad()
    loss.backward()
    steps_of[net].step()
    return loss.detach()


for step in range(args.steps):
    real = torch.randn(args.batch_size, 3, 64, 64).cuda()
    fake = generator(torch.randn(args.batch_size, 128, 1, 1, device="cuda"))
    on_real, on_fake = discriminator(real).flatten(), discriminator(fake.detach()).flatten()
    learn(discriminator, judge(on_real, torch.ones_like(on_real)) + judge(on_fake, torch.zeros_like(on_fake)))
    fooled = discriminator(fake).flatten()
    loss = learn(generator, judge(fooled, torch.ones_like(fooled)))
print("loss", loss.item())
