"""Beam search: hypotheses with their states are reordered at each token and dropped per sentence.

kind: healthy
steps: 60 200
unit: request
"""

import random

import probe
import torch
from torch import nn


class Hypothesis:
    def __init__(self, tokens, score, state):
        self.tokens, self.score, self.state = tokens, score, state

    def extend(self, token, score, state):
        return Hypothesis(self.tokens + [token], self.score + score, state)


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.LSTMCell(32, 128), nn.Linear(128, 700)

    def start(self, source):
        state = None
        for token in source:
            state = self.cell(token, state)
        return state

    @torch.no_grad()
    def translate(self, source, rng, width=4):
        beam = [Hypothesis([], 0.0, self.start(source))]
        for _ in range(rng.randint(3, 12)):
            candidates = []
            for hypothesis in beam:
                state = self.cell(torch.randn(1, 32, device="cuda"), hypothesis.state)
                self.out(state[0]).log_softmax(-1).topk(width)
                candidates += [hypothesis.extend(rng.randrange(700), rng.random(), state) for _ in range(width)]
            beam = sorted(candidates, key=lambda one: -one.score)[:width]
        return beam[0].tokens


rng, translator = random.Random(4), Translator().cuda()
for sentence in range(probe.steps(60)):
    translator.translate(torch.randn(rng.randint(3, 20), 1, 32, device="cuda"), rng)
    probe.step_end()
