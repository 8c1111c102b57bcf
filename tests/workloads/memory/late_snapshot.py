"""A program whose memory history begins late, or not at all.

usage: late_snapshot.py SNAPSHOT.pickle WITNESS.json [--no-history]

The witness has PyTorch's levels when the history begins, their peaks from then on, and those at the
end.
"""

import json
import random
import sys

import torch

MIB = 1 << 20
SIZES = [3000, 200 << 10, 3 * MIB, 9 * MIB, 14 * MIB, 40 * MIB]
snapshot, witness, *options = sys.argv[1:]
random.seed(40)
live, side = [], torch.cuda.Stream()


def allocate_and_free(rounds):
    for number in range(rounds):
        if len(live) > 30 or (live and random.random() < 0.4):
            live.pop(random.randrange(len(live)))
        with torch.cuda.stream(side if number % 5 == 0 else torch.cuda.default_stream()):
            size = random.choice(SIZES) + random.randrange(1000) * 512
            live.append(torch.empty(size, dtype=torch.uint8, device="cuda"))


def levels():
    return {"allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved()}


allocate_and_free(150)
known = {"begin": levels()}
if "--no-history" not in options:
    torch.cuda.memory._record_memory_history()
torch.cuda.reset_peak_memory_stats()
allocate_and_free(300)
torch.cuda.empty_cache()
allocate_and_free(100)
torch.cuda.memory._dump_snapshot(snapshot)
known["peak"] = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
known["end"] = levels()
with open(witness, "w") as file:
    json.dump(known, file)
