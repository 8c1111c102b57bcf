"""A PyTorch program that allocates for some seconds, for runs that are killed or watched.

It prints "begun" after its first work, "leaving" before it ends, and now and then "blocks" with
PyTorch's own counts of allocations and frees. --stats gets its final counts; the program then
leaves by os._exit.
"""

import argparse
import json
import os
import sys
import threading
import time
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "training"))
from models import MODELS, batch  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("work", choices=["train", "threads"])
parser.add_argument("--seconds", type=float, default=2)
parser.add_argument("--model", choices=sorted(MODELS), default="mlp")
parser.add_argument("--threads", type=int, default=16)
parser.add_argument("--pause-ms", type=float, default=0, help="pause after each step, or each 100 allocations")
parser.add_argument("--pluggable", metavar="LIBRARY", help="allocate through gpumemtrace's pluggable allocator")
parser.add_argument("--stats", help="where to write memory_stats() as JSON")
args = parser.parse_args()

if args.pluggable:
    torch.cuda.memory.change_current_allocator(
        torch.cuda.memory.CUDAPluggableAllocator(args.pluggable, "gpumemtrace_malloc", "gpumemtrace_free"))
device = torch.device("cuda")


def print_counts():
    """Prints the counts; driver calls follow, because the cache is emptied."""
    if not args.pluggable:
        stats = torch.cuda.memory_stats()
        print("blocks", stats["allocation.all.allocated"], stats["allocation.all.freed"], flush=True)
        torch.cuda.empty_cache()


def train(seconds):
    """Trains at least one step."""
    end = time.monotonic() + seconds
    while True:
        inputs, labels = batch(model, device)
        optimizer.zero_grad()
        criterion(model(inputs), labels).backward()
        optimizer.step()
        print_counts()
        time.sleep(args.pause_ms / 1000)
        if time.monotonic() >= end:
            break


def allocate(number):
    kept, pair, end = [], 0, time.monotonic() + args.seconds
    while time.monotonic() < end:
        # Some are larger than the allocator's small blocks, so that it calls the driver.
        size = (4 << 20) * (1 + number) if pair % 50 == 0 else 512 * (1 + (pair * 7 + number) % 64)
        kept.append(torch.empty(size, dtype=torch.uint8, device=device))
        kept = kept[-10:]
        pair += 1
        if pair % 100 == 0:
            if number == 0:
                print_counts()
            time.sleep(args.pause_ms / 1000)


if args.work == "train":
    model = MODELS[args.model]().to(device)
    optimizer = torch.optim.Adam(model.parameters())
    criterion = nn.CrossEntropyLoss()
    # The first step loads libraries for a second.
    train(0)
    print("begun", flush=True)
    train(args.seconds)
else:
    torch.ones(1000, device=device)
    print("begun", flush=True)
    threads = [threading.Thread(target=allocate, args=(number,)) for number in range(args.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
if args.stats:
    Path(args.stats).write_text(json.dumps(torch.cuda.memory_stats()))
print("leaving", flush=True)
if args.stats:
    os._exit(0)
