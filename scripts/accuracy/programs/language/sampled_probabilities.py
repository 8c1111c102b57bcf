"""A helper's line makes a temporary and a result; a log keeps the result of each third token.

kind: leak
steps: 60 240
unit: request
every: 3
rate: 42666.7
"""

import probe
import torch
from torch import nn

debug = []


def probabilities(logits, temperature):
    return torch.softmax(logits / temperature, -1)  # leak-or


@torch.inference_mode()
def generate(model, tokens):
    for number in range(tokens):
        logits = model(torch.randn(16, 256, device="cuda"))
        chosen = probabilities(logits, 0.8).argmax(-1)
        if number % 3 == 0:
            debug.append(probabilities(logits, 1.0))  # leak
        del logits
        probe.step_end()
    return chosen


print(generate(nn.Linear(256, 2000).cuda(), probe.steps(60)).shape)
