"""Eight tables are cached by length on eight lines; six lengths exist, so all caches fill and stay.

kind: healthy
steps: 60 200
unit: request
"""

import functools
import random

import probe
import torch
from torch import nn


@functools.cache
def positions(length):
    return torch.arange(length, device="cuda").float()


@functools.cache
def causal_mask(length):
    return torch.ones(length, length, dtype=torch.bool, device="cuda").tril()


@functools.cache
def padding_mask(length):
    return torch.zeros(1, length, dtype=torch.bool, device="cuda")


@functools.cache
def sines(length):
    return torch.outer(positions(length), torch.rand(32, device="cuda")).sin()


@functools.cache
def cosines(length):
    return torch.outer(positions(length), torch.rand(32, device="cuda")).cos()


@functools.cache
def slopes(length):
    return -torch.rand(8, 1, 1, device="cuda") * positions(length)


@functools.cache
def window(length):
    return torch.hann_window(length, device="cuda")


@functools.cache
def buckets(length):
    return (positions(length)[:, None] - positions(length)).abs().long()


@torch.no_grad()
def answer(model, length):
    x = model(torch.randn(length, 64, device="cuda")) * window(length)[:, None]
    rotated = torch.cat([x[:, :32] * cosines(length) - x[:, 32:] * sines(length), x[:, 32:]], 1)
    scores = (rotated @ rotated.T + slopes(length) + buckets(length)).masked_fill(~causal_mask(length), -1e9)
    return scores.masked_fill(padding_mask(length), -1e9).softmax(-1).argmax(-1).cpu()


rng, model = random.Random(5), nn.Linear(64, 64).cuda()
for request in range(probe.steps(60)):
    answer(model, rng.choice([96, 128, 192, 256, 384, 512]))
    probe.step_end()
