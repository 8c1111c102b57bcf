"""Fragments PyTorch's allocator in every way and writes PyTorch's numbers at each step.

usage: fragmentation_gap.py WITNESS.json [--steps N] [--seed S] [--pending]

Allocates small and large blocks on three streams, a private pool if this PyTorch has them, and
blocks with short and long lifetimes. Each step ends with PyTorch's numbers and a mark. With
--pending, blocks are freed while another stream uses them; otherwise every third step empties the
cache.
"""

import argparse
import ctypes
import json
import random

import torch

parser = argparse.ArgumentParser()
parser.add_argument("witness")
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--pending", action="store_true")
args = parser.parse_args()

mark_step = ctypes.CDLL(None).gpumemtrace_step
chance = random.Random(args.seed)
streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
pool = torch.cuda.MemPool() if hasattr(torch.cuda, "MemPool") else None
live, witness = [], []
KIB, MIB = 1 << 10, 1 << 20


def size():
    kind = chance.random()
    if kind < 0.4:
        return chance.randrange(1, 900 * KIB)
    if kind < 0.8:
        return chance.randrange(1 * MIB, 9 * MIB)
    return chance.randrange(10 * MIB, 45 * MIB)


def take(step):
    block = torch.empty(size(), dtype=torch.uint8, device="cuda")
    live.append((step + chance.choice([0, 1, 1, 2, 3, 12]), block))
    if args.pending and chance.random() < 0.3:
        block.record_stream(streams[2])


def churn(step):
    live[:] = [(until, block) for until, block in live if until > step]
    for _ in range(12):
        with torch.cuda.stream(chance.choice(streams + streams[:1] * 3)):
            take(step)
    if pool is not None and step % 2 == 0:
        with torch.cuda.use_mem_pool(pool):
            for _ in range(3):
                take(step)
    chance.shuffle(live)
    del live[: len(live) // 3]


def groups():
    rows = {}
    for segment in torch.cuda.memory_snapshot():
        pool_id = list(segment["segment_pool_id"]) if "segment_pool_id" in segment else None
        key = json.dumps([segment["stream"], pool_id, segment["segment_type"], segment.get("is_expandable", False)])
        row = rows.setdefault(key, {"segments": 0, "reserved": 0, "allocated": 0, "pending": 0, "largest": 0, "beside": 0})
        row["segments"] += 1
        row["reserved"] += segment["total_size"]
        row["allocated"] += segment["allocated_size"]
        row["pending"] += segment["active_size"] - segment["allocated_size"]
        free = [block["size"] for block in segment["blocks"] if block["state"] == "inactive"]
        row["largest"] = max([row["largest"], *free])
        if segment["active_size"]:
            row["beside"] += sum(free)
    return rows


def requested():
    """Returns requested bytes without pending frees, which PyTorch's statistics still count."""
    blocks = (block for segment in torch.cuda.memory_snapshot() for block in segment["blocks"])
    return sum(block["requested_size"] for block in blocks if block["state"] == "active_allocated")


for step in range(args.steps):
    churn(step)
    if not args.pending:
        torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    seen = {
        "allocated": stats["allocated_bytes.all.current"],
        "reserved": stats["reserved_bytes.all.current"],
        "requested": requested(),
        "pending": stats["active_bytes.all.current"] - stats["allocated_bytes.all.current"],
        "groups": groups(),
    }
    mark_step()
    if not args.pending and step % 3 == 2:
        torch.cuda.empty_cache()
        seen["emptied"] = seen["reserved"] - torch.cuda.memory_reserved()
    witness.append(seen)

with open(args.witness, "w") as file:
    json.dump(witness, file)
