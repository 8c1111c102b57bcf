"""Sets phases and marks before its first GPU call. The last line is JSON: PyTorch's numbers for
them.

usage: early_markers.py [nothing]       nothing: makes no GPU call
"""

import json
import sys
import threading

import torch

import gpumemtrace


def use(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


results = {"marks": []}


def mark(name):
    gpumemtrace.mark(name)
    results["marks"].append([name, torch.cuda.memory_allocated() if torch.cuda.is_initialized() else 0, results.get("step", 0)])


def begin_and_end(begun, over):
    with gpumemtrace.phase("of another thread"):
        begun.set()
        over.wait()


begun, over = threading.Event(), threading.Event()
other = threading.Thread(target=begin_and_end, args=(begun, over))
mark("loaded 1")
with gpumemtrace.phase("over before it"):
    gpumemtrace.step()
    results["step"] = 1
with gpumemtrace.phase("around"):
    other.start()
    begun.wait()
    mark("loaded 2")
    kept = []
    for size in gpumemtrace.steps([1 << 20, 2 << 20, 3 << 20]):
        results["step"] += 1
        if "nothing" in sys.argv:
            continue
        with gpumemtrace.phase("turn"):
            kept.append(use(size))
        mark("turn")
    if kept:
        results["around"] = {"peak_live_bytes": torch.cuda.max_memory_allocated(), "net_bytes": torch.cuda.memory_allocated()}
        use(64 << 20)
        over.set()
        other.join()
        results["of another thread"] = {"peak_live_bytes": torch.cuda.max_memory_allocated(), "net_bytes": torch.cuda.memory_allocated()}
        results["around"]["peak_live_bytes"] = torch.cuda.max_memory_allocated()
over.set()
other.join()
if kept:
    use(128 << 20)
    mark("the end: 100 %")
print(json.dumps(results))
