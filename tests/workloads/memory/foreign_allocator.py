"""Fills the GPU through an allocator of another library, and prints how the last request ended.

usage: foreign_allocator.py LIBRARY PREFIX BLOCKS [--crash]
"""

import sys

import torch

library, prefix, blocks = sys.argv[1], sys.argv[2], int(sys.argv[3])
allocator = torch.cuda.memory.CUDAPluggableAllocator(library, f"{prefix}_malloc", f"{prefix}_free")
torch.cuda.memory.change_current_allocator(allocator)
MIB = 1 << 20
kept = []


def keep():
    kept.append(torch.empty(100 * MIB, dtype=torch.uint8, device="cuda"))  # the request


try:
    for _ in range(blocks):
        keep()
    print("enough")
except (MemoryError, RuntimeError) as error:
    print("refused", len(kept), type(error).__name__)
    if "--crash" in sys.argv:
        raise
