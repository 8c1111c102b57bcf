"""Makes one driver allocation."""

from witness import *  # noqa: F403
cuda = driver_with_context()
pointer = cuda.get(ctypes.c_uint64, "cuMemAlloc_v2", ctypes.c_size_t(1 << 21))
cuda.call("cuMemFree_v2", ctypes.c_uint64(pointer))
