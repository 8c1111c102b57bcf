"""The sequence length grows from 32 to 512 tokens; the last batch's logits live across step ends.

kind: growing
steps: 60 200
"""

import probe
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(500, 64)
        self.mix = nn.Conv1d(64, 64, 3, padding=1)
        self.head = nn.Linear(64, 500)

    def forward(self, tokens):
        return self.head(self.mix(self.embed(tokens).mT).mT)


def length_at(step, steps):
    return 32 + (512 - 32) * step // max(1, steps - 1)


def main(steps):
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        tokens = torch.zeros(8, length_at(step, steps), dtype=torch.long, device="cuda")
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        probe.step_end()


main(probe.steps(60))
