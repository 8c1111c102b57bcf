"""Memory in two halves of a run, on two streams and two devices. Prints PyTorch's numbers as JSON.

usage: filtered_run.py STEPS [--devices N]
"""

import ctypes
import json
import os
import sys

import torch

STEPS = int(sys.argv[1])
DEVICES = int(sys.argv[sys.argv.index("--devices") + 1]) if "--devices" in sys.argv else 1
MIB = 1 << 20
BYTES = {"dtype": torch.uint8, "device": "cuda"}

step = ctypes.CDLL(None).gpumemtrace_step
side = torch.cuda.Stream()
held, kept = [], []


def on_the_default_stream():
    held.append(torch.empty(3 * MIB, **BYTES))


def on_the_side_stream():
    with torch.cuda.stream(side):
        held.append(torch.empty(5 * MIB, **BYTES))
        return torch.empty(8 * MIB, **BYTES)


def keep():
    kept.append(torch.empty(1 * MIB, **BYTES))


on_the_default_stream()
spike = torch.empty(96 * MIB, **BYTES)
del spike
half = {}
for number in range(STEPS):
    step()
    if number == STEPS // 2:
        torch.cuda.reset_peak_memory_stats()
        half = {"step": number + 1, "held_bytes": torch.cuda.memory_allocated()}
    work = [torch.empty(4 * MIB, **BYTES), torch.empty(2 * MIB, **BYTES)]
    if number == 2:
        on_the_default_stream()
        later = on_the_side_stream()
    if number == STEPS - 3:
        work.append(torch.empty(16 * MIB, **BYTES))
    if number > STEPS // 2:
        keep()
    del work
half["peak_bytes"] = torch.cuda.max_memory_allocated()
half["peak_reserved_bytes"] = torch.cuda.max_memory_reserved()

for device in range(1, DEVICES):
    with torch.cuda.device(device):
        held.append(torch.empty(10 * device * MIB, **BYTES))

streams = {}
for segment in torch.cuda.memory_snapshot():
    if segment["device"] == 0:
        of = streams.setdefault(str(segment["stream"]), {"live_bytes": 0, "reserved_bytes": 0})
        of["live_bytes"] += segment["allocated_size"]
        of["reserved_bytes"] += segment["total_size"]
print(json.dumps({
    "half": half,
    "streams": streams,
    "side": side.cuda_stream,
    "devices": [{"peak_bytes": torch.cuda.max_memory_allocated(device), "end_bytes": torch.cuda.memory_allocated(device)}
                for device in range(DEVICES)],
}), flush=True)
# An ordinary exit would free the memory that was just measured.
os._exit(0)
