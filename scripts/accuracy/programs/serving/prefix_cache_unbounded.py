"""Caches encoded prefixes by their hash. Half of the prompts hit; each miss stays for good.

kind: leak
steps: 240 800
unit: request
every: 2
"""

import hashlib
import random

import probe
import torch
from torch import nn

model = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True).cuda().eval()
prefixes = {}


def encode(text):
    key = hashlib.md5(text.encode()).digest()
    if key not in prefixes:
        tokens = torch.randn(1, len(text) // 4 + 1, 128, device="cuda")
        prefixes[key] = model(tokens)  # leak
    return prefixes[key]


@torch.no_grad()
def answer(prompt):
    prefix = encode(prompt)
    for _ in range(3):
        token = model(torch.cat([prefix[:, -7:], torch.randn(1, 1, 128, device="cuda")], 1))
    return token.sum()


rng = random.Random(5)
system_prompts = ["You are a helpful assistant. " * n for n in range(1, 12)]
for request in range(probe.steps(240)):
    prompt = rng.choice(system_prompts) if rng.random() < 0.5 else "".join(rng.choices("abcdef ", k=rng.randint(50, 400)))
    answer(prompt)
    probe.step_end()
