"""Compiles and runs a Triton kernel."""

from witness import *  # noqa: F403
try:
    import triton
    import triton.language as tl
except Exception as error:
    give_up("Triton cannot be imported: %s" % error)
import torch

@triton.jit
def double(x, y, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < count), mask=at < count)

x = torch.arange(100_000, device="cuda", dtype=torch.float32)
y = torch.empty_like(x)
double[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
emit(right=bool((y == 2 * x).all()), stats=stats())
exit_now()
