"""Batches by length buckets, packed without padding: each step has another size, at random.

kind: healthy
steps: 80 240
"""

import random

import probe
import torch
from torch import nn


class Buckets:
    def __init__(self, rng, tokens=2048):
        self.rng, self.tokens, self.waiting = rng, tokens, {}

    def __iter__(self):
        while True:
            length = int(self.rng.lognormvariate(4, 0.8)) + 1
            bucket = self.waiting.setdefault(length // 16, [])
            bucket.append(length)
            if sum(bucket) >= self.tokens:
                yield self.waiting.pop(length // 16)


class BagOfWords(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags, self.out = nn.EmbeddingBag(4000, 128, mode="mean"), nn.Linear(128, 12)

    def forward(self, tokens, offsets):
        return self.out(self.bags(tokens, offsets))


model = BagOfWords().cuda()
optimizer = torch.optim.Adam(model.parameters())
for step, lengths in zip(range(probe.steps(80)), Buckets(random.Random(6))):
    tokens = torch.zeros(sum(lengths), dtype=torch.long).cuda()
    offsets = torch.tensor([0, *lengths[:-1]]).cumsum(0).cuda()
    loss = nn.functional.cross_entropy(model(tokens, offsets), torch.zeros(len(lengths), dtype=torch.long, device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    probe.step_end()
