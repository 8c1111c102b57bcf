"""Starts the recording itself, after Metal has allocated memory. late_start.py LIBRARY"""

import ctypes
import sys

import metal_double

device = metal_double.default_device()
old_heap = metal_double.heap(device, 8 << 20)
old_block = metal_double.heap_buffer(old_heap, 1 << 20)
old_direct = metal_double.buffer(device, 1 << 20)
library = ctypes.CDLL(sys.argv[1])
print(library.gpumemtrace_start(), library.gpumemtrace_start())

in_old_heap = metal_double.heap_buffer_at(old_heap, 1 << 20, 2 << 20)
heap = metal_double.heap(device, 4 << 20)
block = metal_double.heap_buffer_at(heap, 1 << 20, 0)
late_in_old_heap = metal_double.heap_buffer_at(old_heap, 1 << 20, 4 << 20)
direct = metal_double.buffer(device, 3 << 20)
for made in (old_block, old_direct, in_old_heap, late_in_old_heap, block, direct, heap, old_heap):
    metal_double.release(made)
print(library.gpumemtrace_stop())
