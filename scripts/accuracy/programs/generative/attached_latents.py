"""A VAE that keeps its latents for a scatter plot without `detach()`: encoder graphs stay.

kind: leak
steps: 40 120
limit: two lines keep equal graphs; the other one is named first
"""

import probe
import torch
from torch import nn


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 40))
        self.decode = nn.Sequential(nn.Linear(20, 400), nn.ReLU(), nn.Linear(400, 784), nn.Sigmoid())

    def forward(self, x):
        mean, log_variance = self.encode(x).chunk(2, 1)  # leak
        z = mean + torch.randn_like(mean) * (log_variance / 2).exp()  # leak-or
        return self.decode(z), z, mean, log_variance


class Experiment:
    def __init__(self):
        self.model = VAE().cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.latents = []

    def evaluate(self, batch):
        _, z, _, _ = self.model(batch)  # leak-or
        self.latents.append(z)

    def train(self, batch):
        output, _, mean, log_variance = self.model(batch)
        divergence = (log_variance.exp() + mean.square() - 1 - log_variance).sum()
        self.optimizer.zero_grad()
        (nn.functional.binary_cross_entropy(output, batch, reduction="sum") + divergence / 2).backward()
        self.optimizer.step()


experiment = Experiment()
for step in range(probe.steps(40)):
    experiment.train(torch.rand(64, 784, device="cuda"))
    experiment.evaluate(torch.rand(64, 784, device="cuda"))
    probe.step_end()
