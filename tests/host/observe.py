"""GPU calls and observe() for programs in Python; each function is one of observe.h.

Calls release the GIL, as those of CUDA libraries do.
"""

import ctypes
import os

_library = ctypes.CDLL(os.environ["HOST_OBSERVER"])
_library.host_alloc.restype = ctypes.c_ulonglong

gpu_begin, gpu_thread = _library.host_begin, _library.host_thread
gpu_pairs, gpu_alloc = _library.host_pairs, lambda size: _library.host_alloc(ctypes.c_size_t(size))


def gpu_free(address):
    _library.host_free(ctypes.c_ulonglong(address))


def observe(point):
    _library.host_observe(point.encode())


def say(*words):
    """Prints a line with one write; lines of several threads do not mix."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())
