"""Attention over long sequences by each backend that PyTorch has for it."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from training import options

args = options(length=4096)
BACKENDS = {SDPBackend.FLASH_ATTENTION: torch.bfloat16, SDPBackend.EFFICIENT_ATTENTION: torch.float32, SDPBackend.MATH: torch.float32}
for step in range(args.steps):
    for backend, dtype in BACKENDS.items():
        length = args.length if backend != SDPBackend.MATH else args.length // 4
        query, key, value = (torch.randn(2, 12, length, 64, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
        with sdpa_kernel(backend):
            torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True).sum().backward()
print("done")
