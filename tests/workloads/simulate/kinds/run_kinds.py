"""Runs kinds of programs on the CPU and on the simulated GPU, and compares them.

usage: [torchrun ...] run_kinds.py MODULE [NAME]...

Each function of the module is a program that takes a device. What it returns must be the same on
both: values of integers, types and shapes of floating-point tensors. In the end, PyTorch's
allocated bytes must be those of the live tensors. Prints one line for each program. A program is
skipped if its library is missing.
"""

import gc
import importlib
import inspect
import os
import signal
import sys
import time
import traceback
import warnings

warnings.simplefilter("ignore")
import torch

#: A program that does not end would fill the memory.
LIMIT_S = 60


def described(result):
    """The part of a result that must be the same on both devices."""
    if isinstance(result, torch.nn.Module):
        return {name: described(value) for name, value in result.state_dict().items()}
    if isinstance(result, torch.Tensor):
        is_known = not result.is_floating_point() and not result.is_complex() and result.layout == torch.strided
        return result.tolist() if is_known else (str(result.dtype), tuple(result.shape))
    if isinstance(result, dict):
        return {name: described(value) for name, value in result.items()}
    if isinstance(result, (list, tuple)):
        return [described(part) for part in result]
    return result if isinstance(result, (int, str, type(None))) else type(result).__name__


def difference(wanted, got):
    """The first parts that differ, for a message."""
    if isinstance(wanted, list) and isinstance(got, list) and len(wanted) == len(got):
        return next((difference(*pair) for pair in zip(wanted, got) if pair[0] != pair[1]), "")
    if isinstance(wanted, dict) and isinstance(got, dict) and wanted.keys() == got.keys():
        return next((f"{name}: {difference(wanted[name], got[name])}" for name in wanted if wanted[name] != got[name]), "")
    return f"the CPU's result is {wanted}, the GPU's {got}"


def live_tensors():
    for thing in gc.get_objects():
        # Some proxies import a library when they are asked for their class.
        if issubclass(type(thing), torch.Tensor):
            yield thing
            if thing.is_leaf and thing.grad is not None:
                yield thing.grad


def live_bytes():
    """The bytes of all live tensors on the GPU, in units of PyTorch's allocator."""
    storages = {}
    for tensor in live_tensors():
        try:
            storage = tensor.untyped_storage()
            if tensor.is_cuda and storage.nbytes():
                storages[storage.data_ptr()] = (storage.nbytes() + 511) // 512 * 512
        except (NotImplementedError, RuntimeError):
            pass  # A tensor without memory of its own.
    return sum(storages.values())


def run(program):
    torch.manual_seed(0)
    wanted = described(program("cpu"))
    torch.manual_seed(0)
    result = program("cuda")
    torch.cuda.synchronize()
    got = described(result)
    if wanted != got:
        return difference(wanted, got)
    # Autograd's thread may free its last tensors after the program went on.
    until = time.monotonic() + 10
    while True:
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()
        allocated, live = torch.cuda.memory_allocated(), live_bytes()
        if allocated == live + unseen:
            return "ok"
        if time.monotonic() > until:
            return f"{allocated} bytes are allocated, tensors have {live}"
        time.sleep(0.01)


def on_alarm(*_):
    raise TimeoutError(f"did not end in {LIMIT_S} s")


module = importlib.import_module(sys.argv[1])
rank = os.environ.get("RANK")
begin = f"rank {rank}, " if rank else ""
programs = {
    name: thing
    for name, thing in vars(module).items()
    if inspect.isfunction(thing) and thing.__module__ == module.__name__ and list(inspect.signature(thing).parameters) == ["device"]
}
unknown = set(sys.argv[2:]) - set(programs)
assert not unknown, f"no such programs: {unknown}"
# What the imports made is not searched for tensors. A process group keeps memory of its own.
gc.collect()
gc.freeze()
unseen = torch.cuda.memory_allocated()
signal.signal(signal.SIGALRM, on_alarm)
for name in sys.argv[2:] or programs:
    began = time.monotonic()
    signal.alarm(LIMIT_S)
    try:
        said = run(programs[name])
    except ImportError as error:
        said = f"skipped: {error}".splitlines()[0]
    except Exception as error:
        traceback.print_exc()
        said = f"{type(error).__name__}: {str(error)[:300]}".replace("\n", " ")
    signal.alarm(0)
    print(f"{begin}{name}: {said}", flush=True)
    print(f"{time.monotonic() - began:.1f} s for {name}", file=sys.stderr)
if rank:
    torch.distributed.destroy_process_group()
