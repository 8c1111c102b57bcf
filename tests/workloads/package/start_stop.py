"""Starts and stops a recording itself. The last line is JSON: PyTorch's numbers.

usage: start_stop.py WHEN
  import  before PyTorch is imported        first   before the first GPU call
  asked   after PyTorch queried the GPUs    held    while PyTorch holds tensors
  thread  the same, beside a thread that allocates without end
"""

import json
import os
import sys
import threading
import warnings

import gpumemtrace

MIB = 1 << 20
when = sys.argv[1]
results = {"moments": [], "gradients": 0}
if when == "import":
    gpumemtrace.start()
import torch  # noqa: E402
from torch import nn  # noqa: E402


def use(size, **where):
    return torch.empty(size, dtype=torch.uint8, device="cuda", **where)


def held():
    return {"live_bytes": torch.cuda.memory_allocated(), "reserved_bytes": torch.cuda.memory_reserved()}


def moment(name):
    gpumemtrace.mark(name)
    results["moments"].append([name, held()])


before, goes_on, thread = [], True, None
if when in ("held", "thread"):
    before = [use(700), use(3 * MIB + 1), use(30 * MIB), use(500 * 1024)]
    # Free blocks, in segments of both kinds.
    del before[1], before[-1]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        before.append(use(5 * MIB))
if when == "thread":

    def churn():
        while goes_on:
            use(4096)

    thread = threading.Thread(target=churn)
    thread.start()
if when == "asked":
    torch.cuda.is_available()
if when != "import":
    gpumemtrace.start("named.trace", stacks="both" if when == "asked" else None)
gpumemtrace.start()
results["recording"] = gpumemtrace.is_recording()
with gpumemtrace.phase("recorded"):
    if thread is None:
        moment("begun")
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1)).cuda()
    results["parameters"] = [parameter.data_ptr() for parameter in model.parameters()]
    for batch in gpumemtrace.steps([torch.randn(32, 256) for _ in range(4)]):
        model(batch.cuda()).sum().backward()
        before[:1] = []
    if thread is None:
        moment("trained")
    results["gradients"] = [parameter.grad.data_ptr() for parameter in model.parameters()]
goes_on = False
if thread is not None:
    thread.join()
results["before stop"] = held()
# Newer Pythons warn about the second thread, which the child does not need.
warnings.simplefilter("ignore", DeprecationWarning)


def in_child():
    """Forks a child that tries to start a recording; returns 7 if that is refused."""
    child = os.fork()
    if child == 0:
        try:
            gpumemtrace.start()
        except RuntimeError:
            os._exit(7)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


results["children"] = [in_child()]
results["path"] = gpumemtrace.stop()
results["again"] = gpumemtrace.stop()
later = use(77 * MIB)
gpumemtrace.step()
gpumemtrace.mark("later")
try:
    gpumemtrace.start()
except RuntimeError as error:
    results["refused"] = str(error)
results["states"] = [gpumemtrace.is_recording(), later.is_cuda]
results["children"].append(in_child())
print(json.dumps(results))
