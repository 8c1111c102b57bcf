"""Takes one large block from the driver and serves all arrays from it, as JAX does by default. It
keeps the block until the process ends.

usage: block_framework.py DRIVER BLOCK_MIB TURNS     keeps 1 MiB of the block per turn
"""

import ctypes
import sys

MIB = 1 << 20
driver = ctypes.CDLL(sys.argv[1])


def check(result):
    if result:
        raise RuntimeError(f"driver error {result}")


context, block = ctypes.c_void_p(), ctypes.c_uint64()
check(driver.cuInit(0))
check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
check(driver.cuCtxSetCurrent(context))
check(driver.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(int(sys.argv[2]) * MIB)))
leaked = []
for turn in range(int(sys.argv[3])):
    leaked.append(block.value + turn * MIB)
    check(driver.cuMemsetD8_v2(ctypes.c_uint64(leaked[-1]), 0, ctypes.c_size_t(MIB)))
    check(driver.cuCtxSynchronize())
