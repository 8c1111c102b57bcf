"""A library takes memory after PyTorch's peak, as cuBLAS and NCCL do: PyTorch's cache stays.

The driver call is the library's own, and PyTorch releases nothing for it.
"""

import ctypes
import sys

import torch

MIB = 1 << 20
batch = torch.empty(300 * MIB, dtype=torch.uint8, device="cuda")
del batch
kept = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
driver, handle = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
if driver.cuMemAlloc_v2(ctypes.byref(handle), ctypes.c_size_t(64 * MIB)):
    sys.exit("no memory for the library")
