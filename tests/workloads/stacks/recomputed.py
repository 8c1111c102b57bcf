"""Trains layers of PyTorch with gradient checkpointing, or compiled: backward runs Python code.

usage: recomputed.py checkpoint|reentrant|compiled
"""

import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

layers = nn.ModuleList(nn.TransformerEncoderLayer(64, 2, 256, batch_first=True) for _ in range(3)).cuda()
optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)


def forward(x):
    for layer in layers:
        x = checkpoint(layer, x, use_reentrant=sys.argv[1] == "reentrant")  # recomputed
    return x


model = torch.compile(nn.Sequential(*layers), backend="aot_eager") if sys.argv[1] == "compiled" else forward
for _ in range(4):
    batch = torch.randn(8, 32, 64, device="cuda", requires_grad=True)
    loss = model(batch).square().mean()  # compiled
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
