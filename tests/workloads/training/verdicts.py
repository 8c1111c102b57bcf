"""Uses a device of 4 GiB in a way that earns one verdict, and writes PyTorch's numbers.

usage: verdicts.py WAY WITNESS.json

  healthy   trains only
  pressure  holds nearly all of the device
  cache     needed nearly all of it once, block by block, and now holds little
  spike     needs much more in one step than in the others
  hidden    a library holds a third of the device
"""

import argparse
import ctypes
import json

import torch
from torch import nn

from models import Mlp, batch

parser = argparse.ArgumentParser()
parser.add_argument("way")
parser.add_argument("witness")
args = parser.parse_args()
MIB = 1 << 20
BYTES = {"dtype": torch.uint8, "device": "cuda"}
mark_step = ctypes.CDLL(None).gpumemtrace_step
model = Mlp().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
kept = []


def hidden():
    address = ctypes.c_uint64()
    assert ctypes.CDLL("libcuda.so.1").cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1400 * MIB)) == 0


if args.way == "pressure":
    kept.append(torch.empty(3800 * MIB, **BYTES))
if args.way == "hidden":
    hidden()
for step in range(200):
    mark_step()
    if args.way == "spike" and step == 120:
        large = torch.empty(3400 * MIB, **BYTES)  # line: spike
        del large
    if args.way == "cache" and step < 12:
        # Each has another size, and none fits the next.
        large = torch.empty((100 + 40 * step) * MIB, **BYTES)
        del large
    data, target = batch(Mlp, torch.device("cuda"))
    nn.functional.cross_entropy(model(data), target).backward()
    optimizer.step()
    optimizer.zero_grad()
with open(args.witness, "w") as file:
    json.dump({
        "peak_live": torch.cuda.max_memory_allocated(),
        "peak_reserved": torch.cuda.max_memory_reserved(),
        "reserved": torch.cuda.memory_reserved(),
    }, file)
