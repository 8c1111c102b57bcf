"""MoCo: a momentum encoder, and a queue of keys in one preallocated tensor.

kind: healthy
steps: 40 140
"""

import copy

import probe
import torch
import torch.nn.functional as F
from torch import nn


class MoCo(nn.Module):
    def __init__(self, size=2048, width=64):
        super().__init__()
        self.query = nn.Sequential(nn.Conv2d(3, 16, 5, stride=4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(width))
        self.query(torch.zeros(1, 3, 32, 32))
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(width, size), dim=0))
        self.pointer = 0

    @torch.no_grad()
    def enqueue(self, keys):
        self.queue[:, self.pointer:self.pointer + len(keys)] = keys.T
        self.pointer = (self.pointer + len(keys)) % self.queue.shape[1]

    def forward(self, one, other):
        with torch.no_grad():
            for slow, fast in zip(self.key.parameters(), self.query.parameters()):
                slow.lerp_(fast, 0.001)
            keys = F.normalize(self.key(other), dim=1)
        queries = F.normalize(self.query(one), dim=1)
        logits = torch.cat([(queries * keys).sum(1, keepdim=True), queries @ self.queue.clone()], 1)
        self.enqueue(keys)
        return F.cross_entropy(logits / 0.07, torch.zeros(len(one), dtype=torch.long, device="cuda"))


model = MoCo().cuda()
optimizer = torch.optim.SGD(model.query.parameters(), lr=0.03, momentum=0.9)
for step in range(probe.steps(40)):
    optimizer.zero_grad()
    model(torch.rand(32, 3, 32, 32, device="cuda"), torch.rand(32, 3, 32, 32, device="cuda")).backward()
    optimizer.step()
    probe.step_end()
