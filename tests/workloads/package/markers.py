"""Allocates in turns, with phases, steps and marks; prints the package's answers as JSON.

usage: markers.py DRIVER TURNS
"""

import asyncio
import ctypes
import json
import os
import sys

import gpumemtrace

# The loader resolves the simulated driver by this path.
driver = ctypes.CDLL(os.path.abspath(sys.argv[1]))
turns = int(sys.argv[2])
kept = []


def make(size):
    pointer = ctypes.c_uint64()
    assert driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)) == 0
    return pointer


def keep():
    kept.append(make(4096))


@gpumemtrace.phase("decorated")
async def decorated():
    driver.cuMemFree_v2(make(2 << 20))


def state():
    try:
        return {"is_recording": gpumemtrace.is_recording(), "path": gpumemtrace.trace_path()}
    except gpumemtrace.NotRecording as error:
        return {"is_recording": gpumemtrace.is_recording(), "refused": type(error).__name__}


results = {"before": state(), "file": gpumemtrace.__file__}
context = ctypes.c_void_p()
assert driver.cuInit(0) == 0
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert driver.cuCtxSetCurrent(context) == 0
results["recording"] = state()

for turn in range(turns):
    gpumemtrace.step()
    if turn == 2 and results["recording"]["is_recording"]:
        results["allocated"] = 2 * len(kept)
        results["report"] = gpumemtrace.report()
    with gpumemtrace.phase("turn %d" % turn):
        keep()
        try:
            with gpumemtrace.phase("inner"):
                raise KeyError(turn)
        except KeyError:
            pass
    asyncio.run(decorated())
print(json.dumps(results))
