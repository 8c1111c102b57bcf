"""Serves arrays from a stream-ordered pool, as JAX does with its allocator `cuda_async`.

XLA's allocator (`GpuCudaMallocAsyncAllocator`) sets the pool's release threshold to its share of
the device. Then it allocates and frees that much once, so that the pool keeps it. Needs no PyTorch.

usage: pool_framework.py DRIVER PREALLOCATED_MIB TURNS     keeps 1 MiB per turn
"""

import ctypes
import sys

MIB = 1 << 20
RELEASE_THRESHOLD = 4
driver = ctypes.CDLL(sys.argv[1])


class PoolProps(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("handle_types", ctypes.c_int), ("location_type", ctypes.c_int),
                ("location_id", ctypes.c_int), ("rest", ctypes.c_uint64 * 9)]


def check(result):
    if result:
        raise RuntimeError(f"driver error {result}")


def allocate(size):
    address = ctypes.c_uint64()
    check(driver.cuMemAllocFromPoolAsync(ctypes.byref(address), ctypes.c_size_t(size), pool, None))
    return address


context, pool = ctypes.c_void_p(), ctypes.c_void_p()
check(driver.cuInit(0))
check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
check(driver.cuCtxSetCurrent(context))
check(driver.cuMemPoolCreate(ctypes.byref(pool), ctypes.byref(PoolProps(kind=1, location_type=1, location_id=0))))
preallocated = int(sys.argv[2]) * MIB
threshold = ctypes.c_uint64(preallocated)
check(driver.cuMemPoolSetAttribute(pool, RELEASE_THRESHOLD, ctypes.byref(threshold)))
check(driver.cuMemFreeAsync(allocate(preallocated), None))
check(driver.cuStreamSynchronize(None))


def keep():
    return allocate(MIB)


kept, free, total = [], ctypes.c_size_t(), ctypes.c_size_t()
for _ in range(int(sys.argv[3])):
    temporary = allocate(4 * MIB)
    kept.append(keep())
    check(driver.cuMemFreeAsync(temporary, None))
    check(driver.cuStreamSynchronize(None))
    check(driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
