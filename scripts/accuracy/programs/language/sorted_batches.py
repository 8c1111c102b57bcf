"""Sentences sorted by length, shortest first, to save padding: every batch is a little longer.

kind: growing
steps: 80 240
"""

import random

import probe
import torch
from torch import nn


def sorted_corpus(count, size=16):
    rng = random.Random(1)
    lengths = sorted(int(rng.lognormvariate(4, 0.6)) + 3 for _ in range(count * size))
    return [lengths[begin:begin + size] for begin in range(0, len(lengths), size)]


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.tags = nn.Embedding(3000, 100, padding_idx=0), nn.Linear(100, 17)

    def forward(self, batch):
        return self.tags(torch.tanh(self.words(batch)))


model = Tagger().cuda()
optimizer = torch.optim.Adam(model.parameters())
for lengths in sorted_corpus(probe.steps(80)):
    batch = torch.zeros(len(lengths), lengths[-1], dtype=torch.long).cuda()
    optimizer.zero_grad()
    scores = model(batch)
    scores.logsumexp(-1).mean().backward()
    optimizer.step()
    probe.step_end()
