"""Episodic curiosity: a state enters the archive if it is novel, which happens ever less often.

kind: filling
steps: 200 500
"""

import random

import probe
import torch
from torch import nn


class Archive:
    """At most 4,096 embeddings; the first states are all novel."""

    def __init__(self, limit=4096):
        self.entries, self.limit = [], limit

    def visit(self, embedding, rng):
        if len(self.entries) < self.limit and rng.random() < 8 / (8 + len(self.entries)):
            self.entries.append(embedding)
            return 1.0
        return 0.0


rng, archive = random.Random(10), Archive()
embed, policy = nn.Linear(50, 1024).cuda(), nn.Linear(1024, 5).cuda()
optimizer = torch.optim.Adam(policy.parameters())
for step in range(probe.steps(200)):
    with torch.no_grad():
        embedding = embed(torch.randn(1, 50, device="cuda"))
    bonus = archive.visit(embedding, rng)
    loss = -policy(embedding).log_softmax(1)[0, 0] * bonus
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    probe.step_end()
