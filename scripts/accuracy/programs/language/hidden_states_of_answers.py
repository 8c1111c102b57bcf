"""Keeps each generation's output object; it has the hidden states of all layers and tokens.

kind: leak
steps: 40 120
unit: request
"""

import random
from dataclasses import dataclass

import probe
import torch
from torch import nn


@dataclass
class GenerateOutput:
    sequences: list
    hidden_states: tuple


class Decoder(nn.Module):
    def __init__(self, depth=4, width=128):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x):
        states = [x]
        for layer in self.layers:
            states.append(torch.relu(layer(states[-1])))  # leak
        return states

    @torch.no_grad()
    def generate(self, prompt, new):
        tokens, hidden, x = [], [], torch.randn(prompt, 128, device="cuda")
        for _ in range(new):
            states = self(x)  # leak-or
            hidden.append(tuple(states))
            tokens.append(0)
            x = states[-1][-1:]
        return GenerateOutput(tokens, tuple(hidden))


def main():
    rng, decoder, outputs = random.Random(2), Decoder().cuda(), {}
    for number in range(probe.steps(40)):
        outputs[f"question {number}"] = decoder.generate(rng.randint(10, 80), rng.randint(5, 20))
        probe.step_end()
    print(sum(len(one.sequences) for one in outputs.values()))


main()
