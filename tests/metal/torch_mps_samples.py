"""A training on the MPS-like allocator, with torch.mps sampled: torch_mps_samples.py [STEPS]
[WRONG]. Prints the allocator's counts per step as JSON. WRONG (`raises`, `odd`): how torch.mps
misbehaves in every third step."""

import json
import sys

import mps_allocator
from mps_allocator import MIB

import gpumemtrace

STEPS = int(sys.argv[1])
WRONG = sys.argv[2] if sys.argv[2:] else ""
BESIDE = 3 * MIB
# torch.mps fails if it is sampled before its first use.
torch = mps_allocator.as_torch(beside=BESIDE)
first = torch.mps.current_allocated_memory
torch.mps.current_allocated_memory = lambda: 1 / 0
gpumemtrace.step()
torch.mps.current_allocated_memory = first
weights = mps_allocator.default.malloc(2 * MIB)
kept, samples, number = [], [], 0


def current():
    global number
    number += 1
    if WRONG and number % 3 == 0:
        if WRONG == "raises":
            raise RuntimeError("not now")
        return "many"
    return first()


torch.mps.current_allocated_memory = current
for step in range(STEPS):
    gpumemtrace.step()
    samples.append(mps_allocator.default.memory_stats())
    activations = [mps_allocator.default.malloc(size * MIB) for size in (6, 4, 2)]
    kept.append(mps_allocator.default.malloc(300_000))
    del activations
print(json.dumps({"steps": samples, "beside": BESIDE}))
