"""Takes the whole KV cache first, as 64 equal tensors, and then decodes a few tokens into it.

kind: healthy
steps: 4 24
unit: request
"""

import probe
import torch
from torch import nn


class Cache:
    def __init__(self, layers, length, width):
        self.keys = [torch.zeros(length, width, dtype=torch.half, device="cuda") for _ in range(layers)]
        self.values = [torch.zeros(length, width, dtype=torch.half, device="cuda") for _ in range(layers)]


@torch.inference_mode()
def decode(layers, cache, position):
    x = torch.randn(1, 128, dtype=torch.half, device="cuda")
    for layer, keys, values in zip(layers, cache.keys, cache.values):
        query, key, value = layer(x).chunk(3, -1)
        keys[position], values[position] = key[0], value[0]
        x = (query @ keys[:position + 1].T).softmax(-1) @ values[:position + 1]
    return x.argmax(-1)


layers = nn.ModuleList(nn.Linear(128, 384) for _ in range(32)).cuda().half()
cache = Cache(32, 4096, 128)
for position in range(probe.steps(4)):
    decode(layers, cache, position)
    probe.step_end()
