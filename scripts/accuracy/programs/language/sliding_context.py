"""Extends a context by `torch.cat` and cuts it to the window: its size goes up and down.

kind: healthy
steps: 80 240
unit: request
"""

import random

import probe
import torch
from torch import nn


class Chat:
    def __init__(self, window=600, width=384):
        self.model, self.window = nn.Linear(width, width).cuda(), window
        self.context = torch.zeros(0, width, device="cuda")

    @torch.inference_mode()
    def turn(self, length):
        tokens = torch.randn(length, 384, device="cuda")
        self.context = torch.cat([self.context, tokens])
        if len(self.context) > self.window:
            # Forgets the older half at once, as llama.cpp's context shift does.
            self.context = self.context[-self.window // 2:].clone()
        return (self.model(tokens) @ self.context.T).argmax(-1).cpu()


rng, chat = random.Random(12), Chat()
for request in range(probe.steps(80)):
    chat.turn(rng.randint(5, 120))
    probe.step_end()
