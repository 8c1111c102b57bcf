"""New words enlarge the embedding every 10 steps; the optimizer keeps each old table and its state.

kind: leak
steps: 80 240
every: 10
rate: varies
"""

import probe
import torch
from torch import nn


class Vocabulary(nn.Module):
    def __init__(self, words, width=64):
        super().__init__()
        self.table, self.head = nn.Embedding(words, width), nn.Linear(width, 2)

    def grow(self, optimizer, words):
        table = nn.Embedding(words, self.table.embedding_dim, device="cuda")  # leak-or
        with torch.no_grad():
            table.weight[:self.table.num_embeddings] = self.table.weight
        self.table = table
        # The old table's group stays in `optimizer.param_groups`.
        optimizer.add_param_group({"params": table.parameters()})

    def forward(self, tokens):
        return self.head(self.table(tokens).mean(1))


def main(steps):
    words = 5000
    model = Vocabulary(words).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(steps):
        if step % 10 == 9:
            words += 500
            model.grow(optimizer, words)
        tokens = torch.zeros(16, 40, dtype=torch.long, device="cuda")
        optimizer.zero_grad(set_to_none=False)
        nn.functional.cross_entropy(model(tokens), tokens[:, 0]).backward()
        optimizer.step()  # leak
        probe.step_end()


main(probe.steps(80))
