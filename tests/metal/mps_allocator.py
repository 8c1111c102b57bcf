"""The part of PyTorch's allocator for Apple GPUs that selects buffers, on the double of Metal
(metal_double.py).

Follows PyTorch's MPSHeapAllocatorImpl: one pool for tensors up to 1 MiB and one for larger ones;
heaps of 8 MiB, 32 MiB, 1 GiB, or the tensor's size. A freed buffer serves later tensors of its pool
that fit and waste less than 32 MiB; the smallest fitting buffer wins. `empty_cache` releases unused
buffers and empty heaps. Not modelled: streams, events, watermarks, scalars. HEAP_OF_ITS_OWN=1 gives
each tensor a heap of its own size.

`memory_stats()` has its own counts; the module stands in for `torch.mps` with its two memory
functions.
"""

import os
import sys
import types

import metal_double

MIB = 1 << 20
SMALL, MIN_LARGE, ROUND_LARGE, PAGE = MIB, 10 * MIB, 2 * MIB, 4096
SMALL_HEAP, LARGE_HEAP, XLARGE_HEAP = 8 * MIB, 32 * MIB, 1024 * MIB
OWN_HEAPS = "HEAP_OF_ITS_OWN" in os.environ


class OutOfMemory(RuntimeError):
    """Like PyTorch's: Metal gave no heap even after the cache was emptied."""


class Heap:
    def __init__(self, made, total):
        self.made, self.total, self.free, self.buffers = made, total, [(0, total)], 0

    def place(self, bytes_):
        """Returns an offset with `bytes_` contiguous free bytes, or `None`."""
        for index, (at, size) in enumerate(self.free):
            if size >= bytes_:
                self.free[index:index + 1] = [(at + bytes_, size - bytes_)] if size > bytes_ else []
                return at
        return None

    def give_back(self, at, bytes_):
        pieces = sorted([*self.free, (at, bytes_)])
        self.free = pieces[:1]
        for begin, size in pieces[1:]:
            last, before = self.free[-1]
            if last + before == begin:
                self.free[-1] = (last, before + size)
            else:
                self.free.append((begin, size))


class Buffer:
    def __init__(self, made, heap, at, size):
        self.made, self.heap, self.at, self.size = made, heap, at, size


class Tensor:
    """Returns its buffer to the allocator when its last reference goes."""

    def __init__(self, allocator, buffer):
        self.allocator, self.buffer = allocator, buffer

    def __del__(self):
        self.allocator.free(self.buffer)


class Allocator:
    def __init__(self, device):
        self.device = device
        self.heaps, self.available = {True: [], False: []}, {True: [], False: []}
        self.allocated = self.reserved = self.tensors = self.refused = 0

    def malloc(self, bytes_):
        size = -(-bytes_ // 256) * 256
        buffer = self.cached(size) or self.made(size)
        if buffer is None:
            self.empty_cache()
            buffer = self.made(size)
        if buffer is None:
            raise OutOfMemory(f"MPS backend out of memory: {bytes_} bytes were asked for; {self.refused} heaps were refused")
        self.allocated, self.tensors = self.allocated + buffer.size, self.tensors + 1
        return Tensor(self, buffer)

    def cached(self, size):
        available = self.available[size <= SMALL]
        fits = [buffer for buffer in available if size <= buffer.size <= size + LARGE_HEAP]
        if OWN_HEAPS:
            fits = [buffer for buffer in fits if buffer.size == size]
        best = min(fits, key=lambda buffer: buffer.size, default=None)
        if best:
            available.remove(best)
        return best

    def made(self, size):
        heaps = self.heaps[size <= SMALL]
        for heap in [] if OWN_HEAPS else heaps:
            at = heap.place(size)
            if at is not None:
                return self.put(heap, at, size)
        total = self.heap_bytes(size)
        made = metal_double.heap(self.device, total)
        if not made:
            self.refused += 1
            return None
        heap = Heap(made, total)
        heaps.append(heap)
        self.reserved += total
        return self.put(heap, heap.place(size), size)

    @staticmethod
    def heap_bytes(size):
        if OWN_HEAPS:
            return -(-size // PAGE) * PAGE
        if size <= SMALL:
            return SMALL_HEAP
        if size < MIN_LARGE:
            return LARGE_HEAP
        return XLARGE_HEAP if size < XLARGE_HEAP // 2 else -(-size // ROUND_LARGE) * ROUND_LARGE

    def put(self, heap, at, size):
        heap.buffers += 1
        return Buffer(metal_double.heap_buffer_at(heap.made, size, at), heap, at, size)

    def free(self, buffer):
        self.allocated, self.tensors = self.allocated - buffer.size, self.tensors - 1
        self.available[buffer.size <= SMALL].append(buffer)

    def empty_cache(self):
        for small, available in self.available.items():
            for buffer in available:
                buffer.heap.give_back(buffer.at, buffer.size)
                buffer.heap.buffers -= 1
                metal_double.release(buffer.made)
            available.clear()
            for heap in [heap for heap in self.heaps[small] if not heap.buffers]:
                self.heaps[small].remove(heap)
                self.reserved -= heap.total
                metal_double.release(heap.made)

    def memory_stats(self):
        cached = [buffer.size for available in self.available.values() for buffer in available]
        heaps = sum(map(len, self.heaps.values()))
        return {"allocated": self.allocated, "reserved": self.reserved, "cached": sum(cached), "tensors": self.tensors, "heaps": heaps}


default = Allocator(metal_double.default_device())


def as_torch(beside=0):
    """Installs a `torch` module with `mps`. `beside`: bytes that Metal counts beyond the heaps."""
    mps = types.ModuleType("torch.mps")
    mps.current_allocated_memory = lambda: default.allocated
    mps.driver_allocated_memory = lambda: default.reserved + beside
    mps.empty_cache = default.empty_cache
    torch = types.ModuleType("torch")
    torch.mps = mps
    sys.modules.update({"torch": torch, "torch.mps": mps})
    return torch
