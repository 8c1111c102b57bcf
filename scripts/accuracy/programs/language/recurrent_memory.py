"""Transformer-XL: the hidden states of the last segment are detached and serve the next one.

kind: healthy
steps: 40 140
"""

import probe
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.kv, self.mlp = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x, memory):
        context = x if memory is None else torch.cat([memory, x], 1)
        k, v = self.kv(context).chunk(2, -1)
        return x + self.mlp((self.q(x) @ k.mT).softmax(-1) @ v)


class RecurrentTransformer(nn.Module):
    def __init__(self, depth=3, width=96, length=64):
        super().__init__()
        self.layers, self.length = nn.ModuleList(Layer(width) for _ in range(depth)), length

    def forward(self, x, memories):
        kept = []
        for layer, memory in zip(self.layers, memories):
            kept.append((x if memory is None else torch.cat([memory, x], 1))[:, -self.length:].detach())
            x = layer(x, memory)
        return x, kept


model = RecurrentTransformer().cuda()
optimizer = torch.optim.Adam(model.parameters())
memories = [None] * 3
for step in range(probe.steps(40)):
    out, memories = model(torch.randn(4, 32, 96, device="cuda"), memories)
    optimizer.zero_grad()
    out.square().mean().backward()
    optimizer.step()
    probe.step_end()
