"""Runs out of memory for one reason and writes PyTorch's numbers; or applies the remedy and does
not.

usage: oom.py REASON WITNESS.json [--remedied]

  leak      a list keeps a block at every step until the device is full
  pieces    each segment has a live block, and the request is larger than the rest
  stream    the free blocks belong to another stream
  pool      the free blocks belong to a private pool
  small     the free bytes are among small blocks
  size      the request is larger than the device
"""

import argparse
import ctypes
import json
import sys

import torch

parser = argparse.ArgumentParser()
parser.add_argument("reason")
parser.add_argument("witness")
parser.add_argument("--remedied", action="store_true")
args = parser.parse_args()
MIB = 1 << 20
BYTES = {"dtype": torch.uint8, "device": "cuda"}
# Keeps the memory of the error alive until PyTorch's statistics are read.
more = []
mark_step = ctypes.CDLL(None).gpumemtrace_step


def leak():
    kept = []
    for _ in range(60):
        mark_step()
        work = torch.empty(64 * MIB, **BYTES)  # line: work  # line: work
        if not args.remedied:
            kept.append(torch.empty(12 * MIB, **BYTES))  # line: leak
        del work


def holes(count, size):
    """Allocates blocks and frees every second one."""
    blocks = [torch.empty(size, **BYTES) for _ in range(count)]
    return blocks[::2]


def pieces():
    kept = []
    for _ in range(11):
        work = torch.empty(40 * MIB, **BYTES)
        del work
        kept.append(torch.empty(25 * MIB, **BYTES))
    torch.empty(100 * MIB, **BYTES)  # line: pieces
    return kept


def stream():
    with torch.cuda.stream(torch.cuda.current_stream() if args.remedied else torch.cuda.Stream()):
        kept = holes(48, 9 * MIB)
    for _ in range(20):
        more.append(torch.empty(9 * MIB, **BYTES))  # line: stream
    return kept


def pool():
    own = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(own):
        kept = holes(48, 9 * MIB)
    if args.remedied:
        kept = own = None
    for _ in range(20):
        more.append(torch.empty(9 * MIB, **BYTES))  # line: pool
    return own, kept


def small():
    kept = holes(440, MIB)
    return kept, torch.empty(150 * MIB, **BYTES)  # line: small


def size():
    return torch.empty(600 * MIB, **BYTES)  # line: size


def witness(error):
    segments = torch.cuda.memory_snapshot()
    free = {}
    for segment in segments:
        key = f"{segment['stream']} {tuple(segment['segment_pool_id'])} {segment['segment_type']}"
        pieces = [block["size"] for block in segment["blocks"] if block["state"] == "inactive"]
        free[key] = max([free.get(key, 0), *pieces])
    return {
        "allocated": torch.cuda.memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
        "free_at_driver": torch.cuda.mem_get_info()[0],
        "largest_free": free,
        "message": str(error),
    }


result = None
try:
    globals()[args.reason]()
except torch.cuda.OutOfMemoryError as error:
    result = witness(error)
with open(args.witness, "w") as file:
    json.dump(result, file)
sys.stdout.flush()
