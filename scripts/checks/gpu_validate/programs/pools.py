"""Allocates from the driver's pool and reports the pool's attributes."""

from witness import *  # noqa: F403
import torch
if torch.cuda.get_allocator_backend() != "cudaMallocAsync":
    give_up("the backend is " + torch.cuda.get_allocator_backend())
cuda = driver()
torch.empty(1, device="cuda")
pool = ctypes.c_void_p(cuda.get(ctypes.c_void_p, "cuDeviceGetDefaultMemPool", 0))

def attribute(number):
    value = ctypes.c_uint64()
    code = cuda.call("cuMemPoolGetAttribute", pool, number, ctypes.byref(value))
    return value.value if code == 0 else None

def sample(label):
    torch.cuda.synchronize()
    emit(label=label, at=now(), used=attribute(7), reserved=attribute(5), torch=torch.cuda.memory_allocated())

kept = []
for size in (1, 100, 513, 4097, 100_000, 3_000_001, 50_000_000, 200_000_000):
    kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    sample("torch.empty of %d bytes" % size)
for index in (2, 5, 0, 3):
    kept[index] = None
    sample("number %d freed" % index)
train("mlp")
sample("training")
kept.clear()
torch.cuda.empty_cache()
sample("all freed, cache emptied")
exit_now()
