"""Allocates from pools of every kind of memory, by call and by graph. Needs no PyTorch.

usage: pool_kinds.py DRIVER

At the end it holds 10 MiB of device memory, 100 and 200 MiB of host memory, and 400 MiB of managed
memory, each from a pool.
"""

import ctypes
import sys
from ctypes import byref, c_int, c_size_t, c_uint64

MIB = 1 << 20
PINNED, MANAGED = 1, 2
NOWHERE, DEVICE, HOST, HOST_NUMA = 0, 1, 2, 3
RELEASE_THRESHOLD = 4
driver = ctypes.CDLL(sys.argv[1])


class Location(ctypes.Structure):
    _fields_ = [("kind", c_int), ("id", c_int)]


class PoolProps(ctypes.Structure):
    _fields_ = [("allocation", c_int), ("handle_types", c_int), ("location", Location), ("rest", c_uint64 * 9)]


class AllocNode(ctypes.Structure):
    _fields_ = [("pool", PoolProps), ("access", c_uint64 * 2), ("size", c_uint64), ("address", c_uint64)]


def call(name, *arguments):
    result = getattr(driver, name)(*[c_uint64(value) if isinstance(value, int) else value for value in arguments])
    if result:
        raise RuntimeError(f"{name}: driver error {result}")


def get(name, *arguments):
    out = c_uint64()
    call(name, byref(out), *arguments)
    return out.value


def make_pool(allocation, location):
    pool = get("cuMemPoolCreate", byref(PoolProps(allocation=allocation, location=Location(*location))))
    call("cuMemPoolSetAttribute", pool, RELEASE_THRESHOLD, byref(c_uint64(1 << 40)))
    return pool


def allocate(pool, size, stream=0):
    return get("cuMemAllocFromPoolAsync", c_size_t(size), pool, stream)


def free(address, stream=0):
    call("cuMemFreeAsync", address, stream)


def default_pools():
    """Allocates from the default pools of host memory and of managed memory."""
    for allocation, location in ((PINNED, (HOST, 0)), (MANAGED, (NOWHERE, 0))):
        place = byref(Location(*location))
        pool = get("cuMemGetDefaultMemPool", place, c_int(allocation))
        assert get("cuMemGetMemPool", place, c_int(allocation)) == pool
        call("cuMemPoolSetAttribute", pool, RELEASE_THRESHOLD, byref(c_uint64(1 << 40)))
        free(allocate(pool, 50 * MIB))


def graphs(host, managed):
    """Launches graphs with allocation nodes of host and of managed memory."""
    graph, node = get("cuGraphCreate", 0), c_uint64()
    for allocation, location, size in ((PINNED, (HOST, 0), 6), (MANAGED, (DEVICE, 0), 8), (PINNED, (DEVICE, 0), 4)):
        params = AllocNode(pool=PoolProps(allocation=allocation, location=Location(*location)), size=size * MIB)
        call("cuGraphAddMemAllocNode", byref(node), graph, None, 0, byref(params))
        call("cuGraphAddMemFreeNode", byref(node), graph, None, 0, params.address)
    stream = get("cuStreamCreate", 1)
    call("cuStreamBeginCapture_v2", stream, 2)
    addresses = [allocate(pool, size * MIB, stream) for pool, size in ((host, 12), (managed, 14))]
    for address in addresses:
        free(address, stream)
    captured = c_uint64()
    call("cuStreamEndCapture", stream, byref(captured))
    for made in (graph, captured.value):
        instance = get("cuGraphInstantiateWithFlags", made, 0)
        for _ in range(2):
            call("cuGraphLaunch", instance, stream)
        call("cuGraphExecDestroy", instance)
        call("cuGraphDestroy", made)


call("cuInit", c_int(0))
call("cuCtxSetCurrent", get("cuDevicePrimaryCtxRetain", c_int(0)))
device = make_pool(PINNED, (DEVICE, 0))
host, numa_node = make_pool(PINNED, (HOST, 0)), make_pool(PINNED, (HOST_NUMA, 0))
managed = make_pool(MANAGED, (DEVICE, 0))
default_pools()
# The managed pool is not the pool of cuMemAllocAsync.
call("cuMemSetMemPool", byref(Location(DEVICE, 0)), c_int(MANAGED), managed)
free(get("cuMemAllocAsync", c_size_t(2 * MIB), 0))
graphs(host, managed)
kept = [allocate(pool, size * MIB) for pool, size in ((device, 10), (host, 100), (numa_node, 200), (managed, 400))]
# Moves 100 MiB of the managed memory to the GPU.
call("cuMemPrefetchAsync", kept[-1], 100 * MIB, 0, 0)
# A pool's blocks outlive it.
extra = allocate(host, 16 * MIB)
call("cuMemPoolDestroy", host)
call("cuMemFree_v2", extra)
free_bytes, total_bytes = c_size_t(), c_size_t()
call("cuMemGetInfo_v2", byref(free_bytes), byref(total_bytes))
