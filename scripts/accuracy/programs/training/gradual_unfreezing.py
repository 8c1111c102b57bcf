"""Unfreezes one layer every few steps from the top: gradients and Adam state come in stages.

kind: healthy
steps: 24 60 160
check: no
limit: the shortest run unfreezes a layer every two steps to its end; optimizer state stays
"""

import probe
import torch
from torch import nn


def build(depth=20, width=256):
    return nn.ModuleList(nn.Linear(width, width) for _ in range(depth)).cuda()


def train(layers, steps, every=2):
    for layer in layers:
        layer.requires_grad_(False)
    optimizer = torch.optim.Adam(layers.parameters(), lr=1e-3)
    for step in range(steps):
        unfrozen = min(len(layers), step // every + 1)
        layers[len(layers) - unfrozen].requires_grad_(True)
        x = torch.randn(64, 256, device="cuda")
        hidden = x
        for layer in layers:
            hidden = torch.relu(layer(hidden))
        optimizer.zero_grad()
        nn.functional.mse_loss(hidden, x).backward()
        optimizer.step()
        probe.step_end()


if __name__ == "__main__":
    train(build(), probe.steps(60))
