"""VQ-VAE with dead codes restarted now and then from recent encodings; codebook and counts by EMA.

kind: healthy
steps: 60 200
"""

import random

import probe
import torch
from torch import nn


class Codebook(nn.Module):
    def __init__(self, codes=256, width=32):
        super().__init__()
        self.register_buffer("codes", torch.randn(codes, width))
        self.register_buffer("counts", torch.ones(codes))
        self.recent = None

    def forward(self, z):
        nearest = torch.cdist(z, self.codes).argmin(1)
        quantized = self.codes[nearest]
        if self.training:
            self.counts = self.counts * 0.99 + torch.bincount(nearest, minlength=256)[:256] * 0.01
            self.recent = z.detach()
        return z + (quantized - z).detach()

    def restart(self, count):
        self.codes[:count] = self.recent[:count]


rng = random.Random(4)
encoder, book, decoder = nn.Linear(100, 32).cuda(), Codebook().cuda(), nn.Linear(32, 100).cuda()
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
for step in range(probe.steps(60)):
    x = torch.randn(512, 100, device="cuda")
    loss = nn.functional.mse_loss(decoder(book(encoder(x))), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rng.random() < 0.1:
        book.restart(rng.randint(1, 30))
    probe.step_end()
