"""Leaks every 7 steps while evaluation runs every 5 and checkpoints every 11, with random batches.

kind: leak
steps: 140 420
every: 7
rate: 5486
"""

import random

import probe
import torch
from torch import nn

rng = random.Random(3)
model = nn.Sequential(nn.Linear(100, 300), nn.PReLU(), nn.Linear(300, 100)).cuda()
optimizer = torch.optim.Adam(model.parameters())
figures, checkpoint = [], None


def plot(weight):
    figures.append(torch.linalg.vector_norm(weight[:, None] - weight[None, :32], dim=-1))  # leak


for step in range(probe.steps(140)):
    x = torch.randn(rng.randint(16, 200), 100, device="cuda")
    optimizer.zero_grad()
    (model(x) - x).abs().mean().backward()
    optimizer.step()
    if step % 5 == 4:
        with torch.no_grad():
            losses = torch.stack([model(torch.randn(300, 100, device="cuda")).mean() for _ in range(6)])
        print(losses.mean().item())
    if step % 7 == 6:
        plot(model[0].weight.detach())
    if step % 11 == 10:
        checkpoint = {name: value.clone() for name, value in model.state_dict().items()}
    probe.step_end()
