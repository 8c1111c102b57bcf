"""A helper keeps features for a plot. In the second half of the run, another phase calls it.

kind: leak
steps: 40 120
rate: 131072
"""

import probe
import torch
from torch import nn

for_plot = []


def keep_for_plot(features):
    for_plot.append(features.detach().clone())  # leak


def linear_probe(encoder, steps):
    head = nn.Linear(256, 10).cuda()
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for _ in range(steps):
        with torch.no_grad():
            features = encoder(torch.randn(128, 64, device="cuda"))
        optimizer.zero_grad()
        head(features).logsumexp(1).mean().backward()
        optimizer.step()
        keep_for_plot(features)
        probe.step_end()


def finetune(encoder, steps):
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.01)
    for _ in range(steps):
        features = encoder(torch.randn(128, 64, device="cuda"))
        keep_for_plot(features)
        optimizer.zero_grad()
        features.square().mean().backward()
        optimizer.step()
        probe.step_end()


def main(steps):
    encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 256)).cuda()
    linear_probe(encoder, steps // 2)
    finetune(encoder, steps - steps // 2)


main(probe.steps(40))
