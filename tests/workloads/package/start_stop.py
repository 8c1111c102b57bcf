"""Starts a recording itself, and ends it. The last line of the output is JSON: what PyTorch says.

usage: starts.py WHEN
  import      before PyTorch is imported       first    before the first GPU call       asked     after PyTorch has asked for GPUs
  held        when PyTorch holds tensors       thread   the same, beside a thread that allocates without end
"""

import json
import os
import sys
import threading
import warnings

import gpumemtrace

MIB = 1 << 20
when = sys.argv[1]
told = {"moments": [], "gradients": 0}
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
    told["moments"].append([name, held()])


before, goes_on, thread = [], True, None
if when in ("held", "thread"):
    before = [use(700), use(3 * MIB + 1), use(30 * MIB), use(500 * 1024)]
    # Holes, in segments of both kinds.
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
told["recording"] = gpumemtrace.is_recording()
with gpumemtrace.phase("recorded"):
    if thread is None:
        moment("begun")
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1)).cuda()
    told["parameters"] = [parameter.data_ptr() for parameter in model.parameters()]
    for batch in gpumemtrace.steps([torch.randn(32, 256) for _ in range(4)]):
        model(batch.cuda()).sum().backward()
        before[:1] = []
    if thread is None:
        moment("trained")
    told["gradients"] = [parameter.grad.data_ptr() for parameter in model.parameters()]
goes_on = False
if thread is not None:
    thread.join()
told["before stop"] = held()
# Of newer versions of Python: there is a second thread, which a child does not need.
warnings.simplefilter("ignore", DeprecationWarning)


def in_child():
    """Whether a child may start one: 7 if it is refused."""
    child = os.fork()
    if child == 0:
        try:
            gpumemtrace.start()
        except RuntimeError:
            os._exit(7)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


told["children"] = [in_child()]
told["path"] = gpumemtrace.stop()
told["again"] = gpumemtrace.stop()
later = use(77 * MIB)
gpumemtrace.step()
gpumemtrace.mark("later")
try:
    gpumemtrace.start()
except RuntimeError as error:
    told["refused"] = str(error)
told["states"] = [gpumemtrace.is_recording(), later.is_cuda]
told["children"].append(in_child())
print(json.dumps(told))
