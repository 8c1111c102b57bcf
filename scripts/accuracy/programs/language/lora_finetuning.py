"""LoRA in half precision: a frozen base, small adapters, accumulation over four micro-batches.

kind: healthy
steps: 30 100
"""

import math

import probe
import torch
from torch import nn


class LoRALinear(nn.Module):
    def __init__(self, base, rank=8):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features, device="cuda") / math.sqrt(rank))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank, device="cuda"))

    def forward(self, x):
        return self.base(x.half()).float() + x @ self.down.T @ self.up.T


class Attention(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.qkv, self.out = (nn.Linear(width, size, device="cuda", dtype=torch.half) for size in (3 * width, width))

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 32)).transpose(1, 3).unbind(2)
        return x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def inject(module):
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            setattr(module, name, LoRALinear(child))
        else:
            inject(child)


model = nn.Sequential(*(Attention() for _ in range(3)))
inject(model)
optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad])
for step in range(probe.steps(30)):
    for _ in range(4):
        model(torch.randn(2, 64, 128, device="cuda")).square().mean().div(4).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    probe.step_end()
