"""15 training steps, then a validation loop without `no_grad` whose losses are kept in a global.

Runs out of memory in the second round of validation.

kind: leak
steps: 95
unit: request
from: 0.3
memory: 16G
limit: the leak comes after the last step; it is named first, as growth towards the error
"""

import probe
import torch
from torch import nn

validation_losses = []


class LM(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.embed = nn.Embedding(8000, width)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True) for _ in range(2))
        self.head = nn.Linear(width, 8000)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def cross_entropy(logits, tokens):
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def train(model, optimizer, steps):
    for _ in range(steps):
        tokens = torch.zeros(8, 128, dtype=torch.long, device="cuda")
        optimizer.zero_grad()
        cross_entropy(model(tokens), tokens).backward()
        optimizer.step()
        probe.step_end()


def validate(model, batches):
    for _ in range(batches):
        tokens = torch.zeros(8, 128, dtype=torch.long, device="cuda")
        logits = model(tokens)  # leak
        validation_losses.append(cross_entropy(logits, tokens))  # leak-or
        probe.step_end()


def main():
    steps = probe.steps(95)
    model = LM().cuda()
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, 15)
    for _ in range(4):
        validate(model, (steps - 15) // 2)


main()
