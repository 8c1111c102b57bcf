"""Keeps one block per turn, by driver calls. Needs no PyTorch.

usage: driver_leak.py DRIVER TURNS     prints "turn N"; before every tenth turn it reads a line
"""

import ctypes
import sys

driver = ctypes.CDLL(sys.argv[1])


def check(result):
    if result:
        raise RuntimeError(f"driver error {result}")


def keep(size):
    address = ctypes.c_uint64()
    check(driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)))
    return address


context = ctypes.c_void_p()
check(driver.cuInit(0))
check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
check(driver.cuCtxSetCurrent(context))
for turn in range(int(sys.argv[2])):
    if turn % 10 == 0:
        sys.stdin.readline()
    keep(1 << 20)
    check(driver.cuMemFree_v2(keep(4 << 20)))
    print("turn", turn, flush=True)
