"""Lets PyTorch record its own memory history beside ours, and dumps its snapshot.

usage: own_snapshot.py SNAPSHOT.pickle [--pending] [--devices N]

Small and large blocks on three streams and in a private pool come and go in eight steps; the cache
is emptied in between, and one allocation fails. The mark `dumped` precedes the snapshot. With
--pending, blocks are freed while another stream uses them.
"""

import argparse
import ctypes
import pickle
import random

import torch

parser = argparse.ArgumentParser()
parser.add_argument("snapshot")
parser.add_argument("--pending", action="store_true")
parser.add_argument("--devices", type=int, default=1)
args = parser.parse_args()

recorder = ctypes.CDLL(None)
recorder.gpumemtrace_mark.argtypes = recorder.gpumemtrace_phase_begin.argtypes = [ctypes.c_char_p]
chance = random.Random(5)
KIB, MIB = 1 << 10, 1 << 20
torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
live = []


def size():
    kind = chance.random()
    if kind < 0.4:
        return chance.randrange(1, 900 * KIB)
    return chance.randrange(1 * MIB, 9 * MIB) if kind < 0.8 else chance.randrange(10 * MIB, 45 * MIB)


def take(step, device):
    block = torch.empty(size(), dtype=torch.uint8, device=device)
    live.append((step + chance.choice([0, 1, 1, 2, 3, 12]), block))
    return block


def churn(step, device, streams, pool):
    live[:] = [(until, block) for until, block in live if until > step]
    for _ in range(12):
        with torch.cuda.stream(chance.choice(streams + streams[:1] * 3)):
            block = take(step, device)
            if args.pending and chance.random() < 0.3:
                block.record_stream(streams[2])
    if pool is not None and step % 2 == 0:
        with torch.cuda.use_mem_pool(pool):
            take(step, device)
    chance.shuffle(live)
    del live[: len(live) // 3]


def refuse(device):
    try:
        torch.empty(1 << 50, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError if hasattr(torch, "OutOfMemoryError") else torch.cuda.OutOfMemoryError:
        pass


for number in range(args.devices):
    with torch.cuda.device(number):
        device = torch.device("cuda", number)
        streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
        pool = torch.cuda.MemPool() if hasattr(torch.cuda, "MemPool") else None
        for step in range(8):
            recorder.gpumemtrace_step()
            recorder.gpumemtrace_phase_begin(b"churn")
            churn(step, device, streams, pool)
            recorder.gpumemtrace_phase_end()
            if step == 4:
                refuse(device)
                recorder.gpumemtrace_mark(b"refused")
            if step % 3 == 2 and not args.pending:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
# A snapshot is an entry in later snapshots.
torch.cuda.memory._snapshot()
recorder.gpumemtrace_mark(b"dumped")
snapshot = torch.cuda.memory._snapshot()
with open(args.snapshot, "wb") as file:
    pickle.dump(snapshot, file)
