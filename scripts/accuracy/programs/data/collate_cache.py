"""A collate function caches padded batches by their sample ids; shuffling never repeats a batch.

kind: leak
steps: 80 240
"""

import random

import probe
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader


class Collate:
    def __init__(self):
        self.cache = {}

    def __call__(self, samples):
        key = tuple(number for number, _ in samples)
        if key not in self.cache:
            padded = pad_sequence([values for _, values in samples], batch_first=True)
            self.cache[key] = padded.cuda()  # leak
        return self.cache[key]


def main():
    rng, steps = random.Random(1), probe.steps(80)
    samples = [(number, torch.randn(rng.randint(20, 80), 12)) for number in range(160)]
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    done, collate = 0, Collate()
    while done < steps:
        for batch in DataLoader(samples, batch_size=16, shuffle=True, collate_fn=collate):
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()
            done += 1
            probe.step_end()
            if done == steps:
                return


main()
