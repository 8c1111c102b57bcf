"""Goes through stages of memory use, one per line of input, and prints PyTorch's statistics.

usage: stages.py     a stage is "spike", "steps N", "cache" or "oom"

Prints a JSON line at the start and after each stage.
"""

import json
import sys

import torch

MIB = 1 << 20
device = torch.device("cuda")
weight = torch.nn.Parameter(torch.zeros(1 << 18, device=device))
optimizer = torch.optim.SGD([weight], lr=0.1)
kept = [torch.empty(size, dtype=torch.uint8, device=device) for size in (3 * MIB, 700, 9 * MIB + 5)]


def report():
    free, total = torch.cuda.mem_get_info()
    print(json.dumps(torch.cuda.memory_stats() | {"total": total}), flush=True)


report()
for line in sys.stdin:
    stage, *arguments = line.split()
    if stage == "spike":
        torch.cuda.reset_peak_memory_stats()
        del kept[0]
        torch.empty(300 * MIB, dtype=torch.uint8, device=device)
    elif stage == "steps":
        for _ in range(int(arguments[0])):
            optimizer.zero_grad()
            (weight * 2).sum().backward()
            optimizer.step()
            kept.append(torch.empty(MIB, dtype=torch.uint8, device=device))
    elif stage == "cache":
        torch.cuda.empty_cache()
    elif stage == "oom":
        try:
            torch.empty(1 << 40, dtype=torch.uint8, device=device)
        except torch.OutOfMemoryError:
            pass
    report()
