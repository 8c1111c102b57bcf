"""Threads that only allocate and free, alone or as one rank of several, optionally with forks.

Writes the allocator's counts per device to stats.<rank>.json in the folder of --stats. It leaves by
os._exit, so that these counts are final.
"""

import argparse
import json
import os
import threading
import warnings
from pathlib import Path

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--threads", type=int, default=4)
parser.add_argument("--pairs", type=int, default=1000, help="allocations (and frees) of each thread")
parser.add_argument("--devices", type=int, default=1)
parser.add_argument("--forks", type=int, default=0, help="children made while the threads run; each ends at once")
parser.add_argument("--gloo", action="store_true", help="meet the other ranks before and after")
parser.add_argument("--stats", type=Path, required=True)
args = parser.parse_args()

rank = int(os.environ.get("RANK", 0))
first_device = int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count()
if args.gloo:
    torch.distributed.init_process_group("gloo")


def storm(number):
    device = torch.device("cuda", (first_device + number % args.devices) % torch.cuda.device_count())
    kept = []
    for pair in range(args.pairs):
        tensor = torch.empty(512 * (1 + (pair * 7 + number) % 64), dtype=torch.uint8, device=device)
        if pair % 100 == 0:
            kept = kept[-10:] + [tensor]
        del tensor


threads = [threading.Thread(target=storm, args=(number,)) for number in range(args.threads)]
for thread in threads:
    thread.start()
warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point
for _ in range(args.forks):
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, "a forked child did not end well"
for thread in threads:
    thread.join()

if args.gloo:
    total = torch.ones(1)
    torch.distributed.all_reduce(total)
    assert total.item() == torch.distributed.get_world_size()
devices = {str(device): torch.cuda.memory_stats(device) for device in range(torch.cuda.device_count())}
(args.stats / f"stats.{rank}.json").write_text(json.dumps(devices))
os._exit(0)
