"""Trains inside torch.cuda._use_uvm(), whose segments are managed memory (PyTorch 2.15).

usage: unified_memory.py STATS

PyTorch calls cudaMallocManaged through cuda-python, which a module of the same name replaces here.
"""

import ctypes
import json
import sys
import types

import torch

cudart = next(ctypes.CDLL(line.split()[-1]) for line in open("/proc/self/maps") if "libcudart" in line)


class Success:
    cudaSuccess = 0


def malloc_managed(size, flags):
    pointer = ctypes.c_void_p()
    result = cudart.cudaMallocManaged(ctypes.byref(pointer), ctypes.c_size_t(size), flags)
    return result, pointer.value or 0


def free(pointer):
    return (cudart.cudaFree(ctypes.c_void_p(pointer)),)


runtime = types.ModuleType("cuda.bindings.runtime")
runtime.cudaError_t, runtime.cudaMemAttachGlobal = Success, 1
runtime.cudaMallocManaged, runtime.cudaFree = malloc_managed, free
# Without the attribute, PyTorch gives no advice about the location.
runtime.cudaDeviceAttr = object()
bindings = types.ModuleType("cuda.bindings")
bindings.runtime = runtime
sys.modules |= {"cuda": types.ModuleType("cuda"), "cuda.bindings": bindings, "cuda.bindings.runtime": runtime}

plain = torch.empty(8 << 20, dtype=torch.uint8, device="cuda")
kept = []
with torch.cuda._use_uvm():
    for step in range(4):
        kept.append(torch.empty(30 << 20, dtype=torch.uint8, device="cuda"))
        temporary = torch.empty(20 << 20, dtype=torch.uint8, device="cuda")
        del temporary
with open(sys.argv[1], "w") as out:
    json.dump(torch.cuda.memory_stats(), out)
