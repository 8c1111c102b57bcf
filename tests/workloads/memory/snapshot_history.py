"""Uses PyTorch's allocator in every way while PyTorch records its own history, and dumps it.

usage: snapshot_history.py SNAPSHOT.pickle WITNESS.json [--steps N] [--max-entries N] [--seed S]

Blocks of all sizes on two streams and in a private pool, blocks that another stream uses when they
are freed, emptied caches, a failed allocation and an optimizer. Set PYTORCH_CUDA_ALLOC_CONF for
expandable segments. The witness has PyTorch's numbers at the dump.
"""

import argparse
import json
import random

import torch

parser = argparse.ArgumentParser()
parser.add_argument("snapshot")
parser.add_argument("witness")
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--max-entries", type=int, default=1_000_000)
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()

KIB, MIB = 1 << 10, 1 << 20
chance = random.Random(args.seed)
torch.cuda.memory._record_memory_history(max_entries=args.max_entries, stacks="python")
side = torch.cuda.Stream()
pool = torch.cuda.MemPool() if hasattr(torch.cuda, "MemPool") else None
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.Adam(model.parameters())
live = []


def size():
    return chance.choice([chance.randrange(1, 900 * KIB), chance.randrange(MIB, 9 * MIB), chance.randrange(10 * MIB, 45 * MIB)])


def take(step):
    block = torch.empty(size(), dtype=torch.uint8, device="cuda")
    if chance.random() < 0.3:
        block.record_stream(side)
    live.append((step + chance.choice([0, 1, 1, 2, 30]), block))


def step(number):
    for _ in range(6):
        take(number)
    with torch.cuda.stream(side):
        take(number)
    if pool is not None and number % 3 == 0:
        with torch.cuda.use_mem_pool(pool):
            take(number)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    live[:] = [(until, block) for until, block in live if until > number]
    if number % 4 == 3:
        torch.cuda.empty_cache()


for number in range(args.steps):
    step(number)
try:
    torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError:
    pass
torch.cuda.memory._dump_snapshot(args.snapshot)
stats = torch.cuda.memory_stats()
with open(args.witness, "w") as file:
    json.dump({"live": stats["allocated_bytes.all.current"], "reserved": stats["reserved_bytes.all.current"],
               "requested": stats["requested_bytes.all.current"], "peak_live": stats["allocated_bytes.all.peak"],
               "peak_reserved": stats["reserved_bytes.all.peak"]}, file)
