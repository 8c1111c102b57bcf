"""A deque of 60 rollouts that is full after 30% of the run and then replaces the oldest.

kind: healthy
steps: 200 600
"""

import random
from collections import deque

import probe
import torch
from torch import nn

model = nn.GRUCell(32, 64).cuda()
head = nn.Linear(64, 4).cuda()
optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()])
rollouts, rng = deque(maxlen=60), random.Random(4)


def collect():
    return torch.randn(rng.randint(4, 12), 32, device="cuda")


for step in range(probe.steps(200)):
    rollouts.append(collect())
    hidden = torch.zeros(1, 64, device="cuda")
    for observation in rng.choice(rollouts):
        hidden = model(observation[None], hidden)
    loss = head(hidden).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    del loss, hidden, observation
    probe.step_end()
