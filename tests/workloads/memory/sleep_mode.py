"""Weights sleep while another program part uses their memory, as in vLLM and SGLang.

usage: sleep_mode.py LIBRARY.so [--frees-pool]

LIBRARY.so is sleep_allocator.c. 8 weights of 100 MiB are awake, then asleep while a block of 1 GiB
lives, and so on three times. The program ends with the weights asleep, or without them.
"""

import ctypes
import sys

import torch

library = ctypes.CDLL(sys.argv[1])
allocator = torch.cuda.memory.CUDAPluggableAllocator(sys.argv[1], "sleeping_malloc", "sleeping_free")
torch.empty(1, device="cuda")
pool = torch.cuda.MemPool(allocator.allocator())
with torch.cuda.use_mem_pool(pool):
    weights = [torch.empty(100 << 20, dtype=torch.uint8, device="cuda") for _ in range(8)]
if "--frees-pool" in sys.argv:
    del weights, pool
    torch.cuda.empty_cache()
    torch.empty(1, device="cuda")
    sys.exit()
for _ in range(3):
    library.sleep_all()
    cache = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    del cache
    torch.cuda.empty_cache()
    if library.wake_all():
        sys.exit("no memory to wake up")
library.sleep_all()
torch.empty(1, device="cuda")
