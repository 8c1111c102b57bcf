"""Blocks of a preallocated KV pool are handed out and given back; requests differ in length.

kind: healthy
steps: 150 500
unit: request
"""

import random

import probe
import torch


class BlockPool:
    def __init__(self, blocks, size, width):
        self.keys = torch.zeros(blocks, size, width, device="cuda")
        self.values = torch.zeros_like(self.keys)
        self.free = list(range(blocks))
        self.size = size

    def take(self, tokens):
        return [self.free.pop() for _ in range(-(-tokens // self.size))]

    def give_back(self, table):
        self.free.extend(table)


@torch.no_grad()
def run(pool, prompt, new):
    table = pool.take(prompt + new)
    index = torch.tensor(table).cuda()
    for position in range(prompt, prompt + new):
        query = torch.randn(1, pool.keys.shape[-1], device="cuda")
        keys = pool.keys.index_select(0, index).flatten(0, 1)[:position]
        values = pool.values.index_select(0, index).flatten(0, 1)[:position]
        (query @ keys.T).softmax(-1) @ values
    pool.give_back(table)


pool, rng = BlockPool(256, 16, 128), random.Random(10)
for request in range(probe.steps(150)):
    run(pool, rng.randint(10, 500), rng.randint(1, 16))
    probe.step_end()
