"""Allocates in many ways and reports the used bytes of cudaMemGetInfo and NVML after each."""

from witness import *  # noqa: F403
import torch
nvml, before = None, None
try:
    nvml = Nvml()
    before = nvml.device_used()
except Exception as error:
    emit(nvml=str(error))

def sample(label, plain=False):
    emit(label=label, plain=plain, at=now(), used=used(), process=nvml and nvml.process_used(), device=nvml and nvml.device_used(),
        before=before)

torch.cuda.init()
torch.cuda.synchronize()
sample("context")
# PyTorch's segments are multiples of 2 MiB and no kernel runs, so only the allocations change used
# bytes. The first one may come from memory of the context, so comparisons start after it.
kept = []
for size in (1 << 20, 15 * (1 << 20), 100 * (1 << 20), 1 << 29, 5 << 20, 3 << 30 if torch.cuda.mem_get_info()[0] > 8 << 30 else 1 << 27):
    kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    sample("torch.empty of %d MiB" % (size >> 20), plain=True)
while kept:
    kept.pop()
    torch.cuda.empty_cache()
    sample("%d of them left, cache emptied" % len(kept), plain=bool(kept))
x = torch.randn(1024, 1024, device="cuda")
sample("first kernel")
y = x @ x
sample("matrix product")
torch.nn.functional.conv2d(torch.randn(8, 16, 64, 64, device="cuda"), torch.randn(16, 16, 3, 3, device="cuda"))
sample("convolution")
torch.linalg.inv(x)
sample("inverse")
pinned = torch.empty(1 << 24, dtype=torch.uint8).pin_memory()
sample("16 MiB pinned")
cuda = driver()
def raw(name, *arguments):
    pointer = ctypes.c_uint64()
    return cuda.call(name, ctypes.byref(pointer), *arguments)
for _ in range(8):
    raw("cuMemAlloc_v2", ctypes.c_size_t(4096))
sample("cuMemAlloc of 4 KiB, 8 times")
for _ in range(2):
    raw("cuMemAlloc_v2", ctypes.c_size_t((3 << 20) + 1))
sample("cuMemAlloc of 3 MiB + 1, twice")
raw("cuMemAllocManaged", ctypes.c_size_t(1 << 24), 1)
sample("16 MiB managed, untouched")
exit_now()
