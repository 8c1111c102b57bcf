"""Allocates and frees, COUNT times or without end; every hundredth block stays. Needs no PyTorch.

Random sizes make each event take a byte or two of the trace, so that parts fill up.

usage: alloc_free.py DRIVER COUNT      0: until killed
"""

import ctypes
import itertools
import random
import sys

driver = ctypes.CDLL(sys.argv[1])
context = ctypes.c_void_p()
assert driver.cuInit(0) == 0
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert driver.cuCtxSetCurrent(context) == 0


def make(size):
    pointer = ctypes.c_uint64()
    assert driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)) == 0
    return pointer


count = int(sys.argv[2])
sizes = random.Random(1)
for i in range(count) if count else itertools.count():
    block = make(512 * sizes.randrange(1, 1000))
    if i % 100:
        driver.cuMemFree_v2(block)
    if i == 1000:
        print("ready", flush=True)
