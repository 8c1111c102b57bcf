"""Runs out of memory in ways that settings of PyTorch's allocator change.

usage: oom_settings.py REASON

  growing   each step needs larger blocks, so the cached ones never fit
  oversize  small blocks that live long take a part of a large free one
  rounded   as oversize, with blocks of many sizes
  asked     as oversize, but the program asks for free memory before
"""

import random
import sys

import torch

MIB = 1 << 20
BYTES = {"dtype": torch.uint8, "device": "cuda"}


def growing():
    kept = []
    for step in range(40):
        work = [torch.empty((40 + 3 * step) * MIB // 4, **BYTES) for _ in range(4)]
        del work
        kept.append(torch.empty(12 * MIB, **BYTES))
    return kept


def oversize():
    large = torch.empty(600 * MIB, **BYTES)
    del large
    kept = [torch.empty(18 * MIB, **BYTES) for _ in range(11)]
    return kept, torch.empty(600 * MIB, **BYTES)


def rounded():
    sizes = random.Random(3)
    kept = []
    for _ in range(150):
        work = [torch.empty(sizes.randrange(1, 60 * MIB), **BYTES) for _ in range(4)]
        kept.append(work[0][:1].clone() if sizes.random() < 0.5 else work.pop())
        del work
    return kept


def asked():
    torch.cuda.mem_get_info()
    return oversize()


globals()[sys.argv[1]]()
