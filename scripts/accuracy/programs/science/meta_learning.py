"""MAML: fast weights of each task live until the outer step; the number of tasks varies.

kind: healthy
steps: 40 120
"""

import random

import probe
import torch
from torch import nn
from torch.func import functional_call


def adapt(model, weights, x, rate=0.1, steps=3):
    for _ in range(steps):
        loss = functional_call(model, weights, (x,)).square().mean()
        grads = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        weights = {name: weight - rate * grad for (name, weight), grad in zip(weights.items(), grads)}
    return weights


rng = random.Random(4)
model = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(probe.steps(40)):
    losses = []
    for task in range(rng.randint(2, 5)):
        fast = adapt(model, dict(model.named_parameters()), torch.randn(10, 1, device="cuda"))
        losses.append(functional_call(model, fast, (torch.randn(10, 1, device="cuda"),)).square().mean())
    optimizer.zero_grad()
    torch.stack(losses).mean().backward()
    optimizer.step()
    probe.step_end()
