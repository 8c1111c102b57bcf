"""A leaky training on two backends: leak_patterns.py cuda|mps PATTERN [STEPS] [--mended]

cuda is real PyTorch, mps the MPS-like allocator; tensors come from the same lines. Prints, as JSON,
per step: allocated and reserved bytes of the allocator, and the bytes that the program keeps.

    forward_hook   keeps an activation per step: no free block is large enough for the next one
    zero_grad      keeps copies of a gradient every fourth step, made while activations are live
    reused         keeps a small tensor at the end of each step, after larger ones were freed: an
                   allocator that reuses larger buffers pins one of them
    own_heaps      like `reused`; with HEAP_OF_ITS_OWN each tensor has a heap of its own size
"""

import json
import sys

import gpumemtrace

MIB = 1 << 20
backend, pattern = sys.argv[1:3]
STEPS = int(sys.argv[3]) if sys.argv[3:] else 48
MENDED = "--mended" in sys.argv
if backend == "cuda":
    import torch

    def tensor(bytes_):
        return torch.empty(bytes_, dtype=torch.uint8, device="cuda")

    def counts():
        stats = torch.cuda.memory_stats()
        return stats["allocated_bytes.all.current"], stats["reserved_bytes.all.current"]

    def bytes_of(one):
        return one.untyped_storage().nbytes()
else:
    import mps_allocator

    mps_allocator.as_torch()
    tensor = mps_allocator.default.malloc

    def counts():
        stats = mps_allocator.default.memory_stats()
        return stats["allocated"], stats["reserved"]

    def bytes_of(one):
        return one.buffer.size


kept, results = [], []
weights = [tensor(4 * MIB), tensor(3 * MIB)]
gradients = [tensor(4 * MIB), tensor(3 * MIB)]


def keep(one):
    kept.append(one)
    if MENDED:
        del kept[:-1]


def forward():
    first = tensor(8 * MIB)
    second = tensor(6 * MIB)  # line: needs_a_new_one
    if pattern == "forward_hook":
        third = tensor(2 * MIB)  # line: forward_hook
        keep(third)
    else:
        third = tensor(2 * MIB)
    fourth = tensor(3 * MIB // 2)
    return [first, second, third, fourth]


def backward(activations, step):
    if pattern == "zero_grad" and step % 4 == 3:
        keep(tensor(4 * MIB))  # line: zero_grad
    while activations:
        activations.pop()


def validate():
    if pattern in ("reused", "own_heaps"):
        keep(tensor(5 * MIB // 2))  # line: reused


for step in range(STEPS):
    gpumemtrace.step()
    try:
        backward(forward(), step)
        validate()
    except RuntimeError as error:
        print(error, file=sys.stderr)
        break
    results.append([*counts(), sum(map(bytes_of, kept))])
gpumemtrace.step()
print(json.dumps(results), flush=True)
if backend == "cuda":
    import os

    os._exit(0)
