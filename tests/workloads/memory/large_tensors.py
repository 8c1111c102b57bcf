"""Keeps three tensors of 1 GiB over some steps."""

import torch

kept = [torch.zeros(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(3)]
for _ in range(20):
    torch.zeros(1 << 20, device="cuda")
