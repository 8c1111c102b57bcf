# `gpumemtrace doctor` runs this in the interpreter under test, with "driver" or "torch".
# Prints one line of JSON.
import functools, json, sys

facts = {"version": sys.version.split()[0], "executable": sys.executable, "frames": None, "torch": {}}


def frames():
    frame, found = sys._getframe(1), []
    while frame:
        found.append([frame.f_code.co_name, frame.f_lineno])
        frame = frame.f_back
    return found


def innermost(allocate, *arguments):
    return frames(), allocate(*arguments)


def driver():
    import ctypes

    cuda, context, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
    if cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) or cuda.cuCtxSetCurrent(context):
        return
    found, result = innermost(cuda.cuMemAlloc_v2, ctypes.byref(address), ctypes.c_size_t(5 << 20))
    if result == 0:
        facts["frames"] = found
        cuda.cuMemFree_v2(address)


def torch():
    import torch

    facts["torch"] = {"version": torch.__version__, "cuda": torch.version.cuda}
    if torch.cuda.is_available():
        empty = functools.partial(torch.empty, dtype=torch.uint8, device="cuda")
        kept = [empty(1), empty(1 << 20)]
        found, tensor = innermost(empty, 1 << 24)
        facts["frames"] = found
        del kept, tensor
        facts["torch"]["allocations"] = torch.cuda.memory_stats()["allocation.all.allocated"]


try:
    {"driver": driver, "torch": torch}[sys.argv[1]]()
except ImportError:
    pass
except Exception as error:
    facts["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
print(json.dumps(facts))
