"""Streams tokens from generators. Clients that hang up leave theirs suspended in a list.

kind: leak
steps: 240 700
unit: request
every: 3
"""

import random

import probe
import torch
from torch import nn

decoder = nn.GRUCell(64, 256).cuda()
head = nn.Linear(256, 64).cuda()
open_streams = []


def stream(prompt_length, most):
    with torch.no_grad():
        context = torch.randn(prompt_length, 1, 64, device="cuda")  # leak
        state = torch.zeros(1, 256, device="cuda")
        for token in context:
            state = decoder(token, state)
        for _ in range(most):
            token = head(state)
            state = decoder(token, state)
            yield token.argmax(-1)


def handle(rng):
    tokens = stream(rng.randint(100, 400), 20)
    open_streams.append(tokens)
    hangs_up_at = rng.randint(1, 19) if rng.random() < 1 / 3 else None
    for count, _ in enumerate(tokens):
        if count == hangs_up_at:
            # Neither `tokens.close()` nor removal from the list.
            return
    open_streams.remove(tokens)


rng = random.Random(8)
for request in range(probe.steps(240)):
    handle(rng)
    probe.step_end()
