"""Trains a small model under torch.profiler and `gpumemtrace.profile()`, in one of some ways.

usage: profiled_training.py WAY

  plain      the profile ends, then the program exports it twice
  schedule   two cycles with a handler of the program, which exports the first
  raise      the body raises
  alone      without a profiler: steps, phases, marks, and an out-of-memory error
"""

import sys

import torch

import gpumemtrace

way = sys.argv[1]
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256)).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(steps, after_step=lambda: None):
    for number in range(steps):
        gpumemtrace.step()
        with gpumemtrace.phase("forward"):
            loss = model(torch.randn(64, 256, device="cuda")).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        gpumemtrace.mark(f"step {number} done")
        after_step()


if way == "alone":
    train(5)
    try:
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        gpumemtrace.mark("recovered")
    sys.exit()

activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
options = {"activities": activities, "profile_memory": True, "with_stack": True, "record_shapes": True}
if way == "schedule":
    handled = []

    def handle(profiler):
        handled.append(profiler.step_num)
        if len(handled) == 1:
            profiler.export_chrome_trace("first.json.gz")

    options |= {"schedule": torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=2), "on_trace_ready": handle}

with torch.profiler.profile(**options) as prof, gpumemtrace.profile(prof, "merged.pftrace"):
    train(4, prof.step if way == "schedule" else lambda: None)
    if way == "raise":
        raise KeyError("of the program")
if way == "schedule":
    print("handled", len(handled))
else:
    prof.export_chrome_trace("exported.json")
    prof.export_chrome_trace("again.json.gz")
