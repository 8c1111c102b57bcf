"""A streaming shuffle buffer of 24 GPU batches; it fills at the start and then stays full.

kind: healthy
steps: 90 300
"""

import random

import probe
import torch
from torch import nn


def stream(rng):
    while True:
        yield torch.randn(16, rng.choice([128, 160, 192]), 8, device="cuda")


def shuffled(items, size, rng):
    buffer = []
    for item in items:
        if len(buffer) < size:
            buffer.append(item)
            continue
        index = rng.randrange(size)
        buffer[index], item = item, buffer[index]
        yield item


rng = random.Random(4)
model = nn.Conv1d(8, 8, 3).cuda()
optimizer = torch.optim.Adagrad(model.parameters())
batches = shuffled(stream(rng), 24, rng)
for step in range(probe.steps(90)):
    batch = next(batches)
    optimizer.zero_grad()
    model(batch.mT).std().backward()
    optimizer.step()
    probe.step_end()
