"""Runs training steps under one recorder: TALLY STEPS MODEL WAY.

After each step it counts events as PyTorch's allocator does, into the mapped tally (fields in
workload.c). The program's CPU is that of all its threads except the recorder's.
"""

import mmap
import os
import struct
import sys
import threading
import time
from pathlib import Path

tally_path, steps, model_name, way = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
tracker = None

import torch
from torch import nn

sys.path.append(str(Path(__file__).resolve().parents[3] / "tests" / "workloads" / "training"))
from models import MODELS, batch

if way == "stormlog":
    from stormlog import MemoryTracker
    from stormlog.telemetry_sink import TelemetrySinkConfig


def threads_of_recorder():
    """Returns the CPU of the recorder's threads: ours by name, else all but the main one."""
    ours = {thread.native_id for thread in threading.enumerate() if thread is not threading.main_thread()}
    total_ns = 0
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) in ours or (task / "comm").read_text().startswith("gpumemtrace"):
            total_ns += int((task / "schedstat").read_text().split()[0])
    return total_ns


def own_cpu_ns():
    return time.process_time_ns() - threads_of_recorder()


def peak_bytes():
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmHWM:"))


if way == "history":
    torch.cuda.memory._record_memory_history("all", stacks="python", context="all")
elif way == "stormlog":
    tracker = MemoryTracker(sampling_interval=0.1, enable_alerts=False, telemetry_sink_config=TelemetrySinkConfig(root_dir="sink"))
    tracker.start_tracking()

device = torch.device("cuda", 0)
model = MODELS[model_name]().to(device)
optimizer = torch.optim.Adam(model.parameters())
criterion = nn.CrossEntropyLoss()
with open(tally_path, "r+b") as file:
    tally = mmap.mmap(file.fileno(), 40)


def put(at, *values):
    struct.pack_into(f"{len(values)}Q", tally, 8 * at, *values)


def count_events():
    blocks = torch._C._cuda_memoryStats(0)["allocation"]["all"]
    put(1, blocks["allocated"] + blocks["freed"])


def step():
    inputs, labels = batch(model, device)
    optimizer.zero_grad()
    criterion(model(inputs), labels).backward()
    optimizer.step()
    count_events()


count_events()
put(0, os.getpid())
begin_own_ns = own_cpu_ns()
put(2, time.process_time_ns())
for _ in range(steps):
    step()
put(3, own_cpu_ns() - begin_own_ns)
if way == "history":
    torch.cuda.memory._dump_snapshot("snapshot.pickle")
elif tracker:
    tracker.stop_tracking()
put(4, peak_bytes())
# Ends by exit, not os._exit, because recorders work at exit too. PyTorch sometimes aborts there.
