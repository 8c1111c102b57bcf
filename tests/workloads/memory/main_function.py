"""A training in a main() function that keeps a block in each step. At its end, all is free.

Writes [allocated, reserved] in bytes at the begin of each step to a file, as PyTorch reports them.
"""

import ctypes
import json
import sys

import torch

ours = ctypes.CDLL(None)


def main():
    kept, seen = [], []
    for _ in range(12):
        seen.append([torch.cuda.memory_allocated(), torch.cuda.memory_reserved()])
        ours.gpumemtrace_step()
        torch.zeros(3 << 20, dtype=torch.uint8, device="cuda")
        kept.append(torch.zeros(1 << 20, dtype=torch.uint8, device="cuda"))
    with open(sys.argv[1], "w") as file:
        json.dump(seen, file)


main()
