"""A prefix cache bounded by bytes, with a budget that this run does not reach.

kind: filling
steps: 240 800
unit: request
limit: a cache that fills grows like a leak until it is full
"""

import random

import probe
import torch
from torch import nn


class ByteBoundedCache:
    def __init__(self, budget):
        self.budget, self.used, self.entries = budget, 0, {}

    def get(self, key, make):
        if key not in self.entries:
            value = make()
            self.used += value.nbytes
            self.entries[key] = value
            while self.used > self.budget:
                self.used -= self.entries.pop(next(iter(self.entries))).nbytes
        return self.entries[key]


@torch.inference_mode()
def serve(requests):
    rng, model, cache = random.Random(9), nn.Linear(256, 256).cuda(), ByteBoundedCache(4 << 30)
    for _ in range(requests):
        key, length = rng.randrange(100_000), rng.randint(20, 300)
        states = cache.get(key, lambda: model(torch.randn(length, 256, device="cuda")))
        model(states).argmax(-1)
        probe.step_end()


serve(probe.steps(240))
