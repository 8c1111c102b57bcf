"""A draft model proposes tokens, the large one verifies them; caches are cut back when it rejects.

kind: healthy
steps: 40 120
unit: request
"""

import random

import probe
import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth))

    def forward(self, x, cache):
        for index, layer in enumerate(self.layers):
            keys, values = layer(x).chunk(2, -1)
            if index in cache:
                keys, values = torch.cat([cache[index][0], keys]), torch.cat([cache[index][1], values])
            cache[index] = keys, values
            x = (x @ keys.T).softmax(-1) @ values
        return x


def cut(cache, length):
    for index, (keys, values) in cache.items():
        cache[index] = keys[:length], values[:length]


@torch.inference_mode()
def generate(target, draft, prompt, wanted, rng):
    caches = {}, {}
    for model, cache in zip((target, draft), caches):
        model(torch.randn(prompt, 128, device="cuda"), cache)
    length = prompt
    while length < prompt + wanted:
        proposed = [draft(torch.randn(1, 128, device="cuda"), caches[1]) for _ in range(4)]
        target(torch.cat(proposed), caches[0])
        length += rng.randint(1, 4)
        for cache in caches:
            cut(cache, length)


target, draft, rng = Decoder(128, 6).cuda(), Decoder(128, 2).cuda(), random.Random(16)
for request in range(probe.steps(40)):
    generate(target, draft, rng.randint(8, 90), rng.randint(8, 24), rng)
    probe.step_end()
