"""Activation checkpointing: the backward pass runs each block's forward pass again.

kind: healthy
steps: 30 100
"""

import probe
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Deep(nn.Module):
    def __init__(self, depth=6, width=192):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def main():
    model = Deep().cuda()
    optimizer = torch.optim.NAdam(model.parameters())
    for step in range(probe.steps(30)):
        x = torch.randn(8, 128, 192, device="cuda", requires_grad=True)
        model(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        probe.step_end()


if __name__ == "__main__":
    main()
