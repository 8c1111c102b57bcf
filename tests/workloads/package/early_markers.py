"""Says things before its first GPU call, and marks moments. The last line of the output is JSON: what PyTorch says of them.

usage: says_early.py [nothing]       nothing: no GPU call is made at all
"""

import json
import sys
import threading

import torch

import gpumemtrace


def use(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


told = {"marks": []}


def mark(name):
    gpumemtrace.mark(name)
    told["marks"].append([name, torch.cuda.memory_allocated() if torch.cuda.is_initialized() else 0, told.get("step", 0)])


def begin_and_end(begun, over):
    with gpumemtrace.phase("of another thread"):
        begun.set()
        over.wait()


begun, over = threading.Event(), threading.Event()
other = threading.Thread(target=begin_and_end, args=(begun, over))
mark("loaded 1")
with gpumemtrace.phase("over before it"):
    gpumemtrace.step()
    told["step"] = 1
with gpumemtrace.phase("around"):
    other.start()
    begun.wait()
    mark("loaded 2")
    kept = []
    for size in gpumemtrace.steps([1 << 20, 2 << 20, 3 << 20]):
        told["step"] += 1
        if "nothing" in sys.argv:
            continue
        with gpumemtrace.phase("turn"):
            kept.append(use(size))
        mark("turn")
    if kept:
        told["around"] = {"peak_live_bytes": torch.cuda.max_memory_allocated(), "left_bytes": torch.cuda.memory_allocated()}
        use(64 << 20)
        over.set()
        other.join()
        told["of another thread"] = {"peak_live_bytes": torch.cuda.max_memory_allocated(), "left_bytes": torch.cuda.memory_allocated()}
        told["around"]["peak_live_bytes"] = torch.cuda.max_memory_allocated()
over.set()
other.join()
if kept:
    use(128 << 20)
    mark("the end: 100 %")
print(json.dumps(told))
