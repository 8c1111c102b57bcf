"""Keeps a tensor of known size at every step, by a named reference or in ways that are hard to
scan.

usage: holders.py HOLDER [--steps N] [--objects N] [--look] [--measure FILE]

  list, attribute, keyed, closure, class, local, graph, slots, both   where the tensors are kept
  unnamed     in a cycle without outside reference
  rude        in objects that raise on every access
  hooked      in a graph with saved-tensor hooks
  raises      in a variable of a function that ends the program with an error
  oom         in a list, until memory runs out; then the program continues
  signal      in a list; the program signals itself and continues

--objects N   creates N other objects before the list
--measure     writes counters before and after a scan, as JSON; the program scans itself
"""

import argparse
import gc
import json
import os
import signal
import sys
import weakref

import torch

# Only scans that this program or its end causes; holder_moments.py has those during the run.
os.environ.pop("GPUMEMTRACE_HOLDERS_SOCKET", None)
parser = argparse.ArgumentParser()
parser.add_argument("holder")
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--objects", type=int, default=0)
parser.add_argument("--limit", type=float, default=2.0)
parser.add_argument("--measure")
args = parser.parse_args()
MIB = 1 << 20
#: Functions of the program that the scan must not call.
called = []
heap = [[[]] for _ in range(args.objects // 2)]


def mark_step():
    import ctypes

    ctypes.CDLL(None).gpumemtrace_step()


def new():
    return torch.zeros(MIB, dtype=torch.uint8, device="cuda")  # line: new


class Trainer:
    history = []

    def __init__(self):
        self.seen = {"loss": [], "other": 3}


class Slotted:
    __slots__ = ("found",)

    def __init__(self):
        self.found = []


def refuse(*arguments):
    called.append("asked")
    raise RuntimeError("asked")


class RudeMeta(type):
    def __getattribute__(cls, name):
        called.append(name)
        raise RuntimeError("asked a class")

    def __hash__(cls):
        called.append("hash of a class")
        raise RuntimeError("hashed a class")

    def __instancecheck__(cls, one):
        called.append("isinstance")
        raise RuntimeError("asked whether it is one")


class Rude(metaclass=RudeMeta):
    """Raises on every access."""

    def __init__(self, tensor):
        object.__setattr__(self, "inner", tensor)

    def __getattribute__(self, name):
        called.append(name)
        raise RuntimeError("asked")

    def __getattr__(self, name):
        called.append(name)
        raise RuntimeError("asked")

    __len__ = __iter__ = __eq__ = __hash__ = __repr__ = __str__ = __bool__ = __dir__ = __getitem__ = __contains__ = refuse
    __class__ = property(refuse)


class RudeList(list):
    __len__ = __iter__ = __getitem__ = __contains__ = __eq__ = __repr__ = refuse


class RudeDict(dict):
    __len__ = __iter__ = __getitem__ = __contains__ = __eq__ = items = values = keys = refuse


class RudeTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        if quiet:
            called.append(str(function))
            raise RuntimeError("asked a tensor")
        return super().__torch_function__(function, types, arguments, named or {})


quiet = False
kept = []
trainer = Trainer()
slotted = Slotted()
total = None
rude = RudeDict(of=RudeList())
by_step = {}
again = {}
parameter = torch.ones(MIB // 4, device="cuda", requires_grad=True)


def closure():
    memory = []

    def remember(tensor):
        memory.append(tensor)

    return remember


remember = closure()


def unpack(saved):
    called.append("unpack")
    return saved


def keep(step):
    global total
    tensor = new()
    if args.holder in ("list", "oom", "signal"):
        kept.append(tensor)
    elif args.holder == "attribute":
        trainer.seen["loss"].append(tensor)
    elif args.holder == "keyed":
        by_step[f"step {step}"] = tensor
    elif args.holder == "closure":
        remember(tensor)
    elif args.holder == "class":
        Trainer.history.append(tensor)
    elif args.holder == "slots":
        slotted.found.append((step, tensor))
    elif args.holder == "both":
        kept.append(tensor)
        again["last"] = tensor
    elif args.holder == "unnamed":
        cycle = [tensor]
        cycle.append(cycle)
    elif args.holder == "rude":
        if step % 2:
            list.append(dict.__getitem__(rude, "of"), Rude(tensor))
        else:
            list.append(dict.__getitem__(rude, "of"), torch.Tensor._make_subclass(RudeTensor, tensor))
    elif args.holder in ("graph", "hooked"):
        # Backward saves the product's factor; no variable refers to it.
        factor = torch.zeros(MIB // 4, device="cuda")  # line: factor
        product = (parameter * factor).sum()
        total = product if total is None else total + product


def measured():
    """Returns counters that a scan could change."""
    gc.collect()
    things = [kept, trainer, Trainer, trainer.seen, trainer.seen["loss"], slotted, by_step, parameter, remember, rude, again]
    tensors = [tensor for tensor in kept if type(tensor) is torch.Tensor] + list(by_step.values())
    counts = [sys.getrefcount(thing) for thing in things + tensors]
    stats = {key: value for key, value in torch.cuda.memory_stats().items() if type(value) is int}
    del things, tensors
    return {"refcounts": counts, "objects": len(gc.get_objects()), "stats": stats, "gc": gc.isenabled()}


def run():
    history = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack)
    for step in range(args.steps):
        mark_step()
        if args.holder in ("local", "raises"):
            history.append(new())
        elif args.holder == "hooked":
            with hooks:
                keep(step)
        else:
            keep(step)
    mark_step()
    if args.holder == "raises":
        raise ValueError("the end")
    if args.holder == "oom":
        for _ in range(5):
            try:
                torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
            except torch.cuda.OutOfMemoryError:
                called.append("oom")
    if args.holder == "signal":
        gone = weakref.ref(new())
        local = new()
        os.kill(os.getpid(), signal.SIGUSR2)
        still = weakref.ref(local)
        del local
        assert gone() is None and still() is None, "the look has kept a variable alive"
    if args.measure:
        measure(args.measure)


def measure(file):
    import gpumemtrace

    # As text: objects kept here count too. The first scan imports its modules.
    looks = [json.dumps(gpumemtrace.holders(args.limit))]
    before = json.dumps(measured())
    looks.append(json.dumps(gpumemtrace.holders(args.limit)))
    after = json.dumps(measured())
    with open(file, "w", encoding="utf-8") as out:
        out.write(f'{{"before": {before}, "after": {after}, "looks": [{", ".join(looks)}]}}')


if args.holder == "unnamed":
    gc.disable()
quiet = True
run()
print("done", json.dumps(called))
sys.exit(7)
