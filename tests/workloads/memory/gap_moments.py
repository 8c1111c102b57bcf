"""Leaves free memory in a live MemPool, in a CUDA graph's pool and on a side stream, and writes
PyTorch's numbers at the moments that a report explains.

usage: gap_moments.py WITNESS.json [--steps N] [--refused]

Every operation allocates or frees one block, and PyTorch's statistics after each give the largest
gap. With --refused, another library then asks the driver for more than it has left.
"""

import argparse
import ctypes
import json

import torch

parser = argparse.ArgumentParser()
parser.add_argument("witness")
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--refused", action="store_true")
args = parser.parse_args()

mark_step = ctypes.CDLL(None).gpumemtrace_step
MIB = 1 << 20
largest = {"gap": 0}
live = {}


def numbers():
    stats = torch.cuda.memory_stats()
    reserved, requested = stats["reserved_bytes.all.current"], stats["requested_bytes.all.current"]
    return {"reserved": reserved, "requested": requested, "allocated": stats["allocated_bytes.all.current"], "gap": reserved - requested}


def note():
    global largest
    now = numbers()
    largest = now if now["gap"] > largest["gap"] else largest


def take(name, mib):
    live[name] = torch.empty(mib * MIB - 100, dtype=torch.uint8, device="cuda")  # line: take
    note()


def drop(name):
    del live[name]
    note()


def state():
    """Returns PyTorch's numbers, with the free bytes of private pools and what pins the others."""
    free = {"private": 0, "graphs": 0, "empty": 0, "small": 0, "streams": 0, "pinned": 0}
    for segment in torch.cuda.memory_snapshot():
        bytes_free = segment["total_size"] - segment["allocated_size"]
        first, second = segment["segment_pool_id"]
        if (first, second) != (0, 0):
            free["private"] += bytes_free
            free["graphs"] += bytes_free if first else 0
        elif segment["allocated_size"] == 0:
            free["empty"] += bytes_free
        elif segment["segment_type"] == "small":
            free["small"] += bytes_free
        else:
            free["pinned" if segment["stream"] == 0 else "streams"] += bytes_free
    return numbers() | {"free": free}


def in_pool(pool):
    with torch.cuda.use_mem_pool(pool):
        take("in pool", 90)
        take("kept in pool", 6)


def on_stream(stream, step):
    with torch.cuda.stream(stream):
        take(("stream", step), 30)
        take(("kept on stream", step), 4)
        drop(("stream", step))


pool, side = torch.cuda.MemPool(), torch.cuda.Stream()
take("weights", 50)
in_pool(pool)
drop("in pool")
graph = torch.cuda.CUDAGraph()
source = torch.zeros(12 * MIB, dtype=torch.uint8, device="cuda")
with torch.cuda.graph(graph):
    hidden = source + 1  # line: graph
    output = hidden + 1
    del hidden
graph.replay()
torch.cuda.synchronize()
steps = []
for step in range(args.steps):
    take("activations", 120)
    take("more activations", 40)
    drop("activations")
    on_stream(side, step % 2)
    drop("more activations")
    steps.append(state())
    mark_step()
before = torch.cuda.memory_reserved()
torch.cuda.empty_cache()
emptied = before - torch.cuda.memory_reserved()
take("result", 8)
result = {"steps": steps, "emptied": emptied, "largest": largest, "end": state()}
if args.refused:
    take("cached", 200)
    drop("cached")
    driver = ctypes.CDLL("libcuda.so.1")
    address, free, total = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_size_t()
    assert driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    wanted = ctypes.c_size_t(free.value + MIB)
    result["refused"] = state() | {"bytes": wanted.value}
    assert driver.cuMemAlloc_v2(ctypes.byref(address), wanted) == 2  # line: refused
with open(args.witness, "w") as file:
    json.dump(result, file)
