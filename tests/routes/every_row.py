"""Calls every driver function of the table, by one route, on the simulated driver. Run by
test_routes.py.

usage: every_row.py ROUTE FOLDER MODE     ROUTE: dlsym, proc_address or linked     MODE: work or
fail

`work` is one program that uses every function; each call succeeds if the simulated driver can do
it. `fail` calls every function once with zeroed buffers; the environment makes each call fail.
Prints the names of all functions that it called through the route.
"""

import ctypes
import os
import socket
import subprocess
import sys
from ctypes import byref, c_int, c_size_t, c_uint64
from pathlib import Path

MIB = 1 << 20
DEVICE, HOST, HOST_NUMA = 1, 2, 3  # CUmemLocationType
POSIX_FD = 1

#: Exported name: (name, version) for cuGetProcAddress; `_ptsz` selects the per-thread stream.
VERSIONS = {
    "cuMemAlloc_v2": 3020, "cuMemAllocPitch_v2": 3020, "cuMemAllocManaged": 6000, "cuMemFree_v2": 3020,
    "cuMemGetInfo_v2": 3020,
    "cuMemAllocHost_v2": 3020, "cuMemHostAlloc": 2020, "cuMemFreeHost": 2000, "cuMemHostRegister": 4000,
    "cuMemHostRegister_v2": 6050, "cuMemHostUnregister": 4000,
    "cuMemAllocAsync": 11020, "cuMemAllocAsync_ptsz": 11020, "cuMemAllocFromPoolAsync": 11020,
    "cuMemAllocFromPoolAsync_ptsz": 11020, "cuMemFreeAsync": 11020, "cuMemFreeAsync_ptsz": 11020,
    "cuMemPoolCreate": 11020, "cuMemPoolDestroy": 11020, "cuMemPoolTrimTo": 11020, "cuMemPoolSetAttribute": 11020,
    "cuMemPoolGetAttribute": 11020, "cuDeviceSetMemPool": 11020, "cuMemSetMemPool": 13000,
    "cuMemGetDefaultMemPool": 13000, "cuMemGetMemPool": 13000,
    "cuMemPoolExportToShareableHandle": 11020, "cuMemPoolImportFromShareableHandle": 11020,
    "cuMemPoolExportPointer": 11020, "cuMemPoolImportPointer": 11020,
    "cuMemAddressReserve": 10020, "cuMemAddressFree": 10020, "cuMemCreate": 10020, "cuMemRelease": 10020,
    "cuMemMap": 10020, "cuMemUnmap": 10020, "cuMemMapArrayAsync": 11010, "cuMemMapArrayAsync_ptsz": 11010,
    "cuMemSetAccess": 10020, "cuMemRetainAllocationHandle": 11000, "cuMemExportToShareableHandle": 10020,
    "cuMemImportFromShareableHandle": 10020,
    "cuMulticastCreate": 12010, "cuMulticastAddDevice": 12010, "cuMulticastBindMem": 12010, "cuMulticastBindMem_v2": 13010,
    "cuMulticastBindAddr": 12010, "cuMulticastBindAddr_v2": 13010, "cuMulticastUnbind": 12010,
    "cuMemPrefetchAsync": 8000, "cuMemPrefetchAsync_ptsz": 8000, "cuMemPrefetchAsync_v2": 12020,
    "cuMemPrefetchAsync_v2_ptsz": 12020, "cuMemPrefetchBatchAsync": 13000, "cuMemPrefetchBatchAsync_ptsz": 13000,
    "cuMemDiscardAndPrefetchBatchAsync": 13000, "cuMemDiscardAndPrefetchBatchAsync_ptsz": 13000,
    "cuMemDiscardBatchAsync": 13000, "cuMemDiscardBatchAsync_ptsz": 13000,
    "cuArrayCreate_v2": 3020, "cuArray3DCreate_v2": 3020, "cuArrayDestroy": 2000, "cuMipmappedArrayCreate": 5000,
    "cuMipmappedArrayDestroy": 5000,
    "cuIpcGetMemHandle": 4010, "cuIpcOpenMemHandle": 4010, "cuIpcOpenMemHandle_v2": 11000, "cuIpcCloseMemHandle": 4010,
    "cuImportExternalMemory": 10000, "cuExternalMemoryGetMappedBuffer": 10000,
    "cuExternalMemoryGetMappedMipmappedArray": 10000, "cuDestroyExternalMemory": 10000,
    "cuGraphicsMapResources": 3000, "cuGraphicsMapResources_ptsz": 7000, "cuGraphicsUnmapResources": 3000,
    "cuGraphicsUnmapResources_ptsz": 7000, "cuGraphicsResourceGetMappedPointer_v2": 3020,
    "cuGraphAddMemAllocNode": 11040, "cuGraphAddMemFreeNode": 11040, "cuGraphAddNode": 12020, "cuGraphAddNode_v2": 12030,
    "cuGraphAddNode_v3": 13040, "cuGraphInstantiate": 10000, "cuGraphInstantiate_v2": 11000,
    "cuGraphInstantiateWithFlags": 11040, "cuGraphInstantiateWithParams": 12000, "cuGraphInstantiateWithParams_ptsz": 12000,
    "cuGraphUpload": 11010, "cuGraphUpload_ptsz": 11010, "cuGraphLaunch": 10000, "cuGraphLaunch_ptsz": 10000,
    "cuGraphExecDestroy": 10000, "cuGraphDestroy": 10000, "cuDeviceGraphMemTrim": 11040,
    "cuCtxCreate": 2000, "cuCtxCreate_v2": 3020, "cuCtxCreate_v3": 11040, "cuCtxCreate_v4": 12050,
    "cuCtxDestroy": 2000, "cuCtxDestroy_v2": 4000, "cuDevicePrimaryCtxRetain": 7000, "cuDevicePrimaryCtxRelease": 7000,
    "cuDevicePrimaryCtxRelease_v2": 11000, "cuDevicePrimaryCtxReset": 7000, "cuDevicePrimaryCtxReset_v2": 11000,
    "cuGreenCtxCreate": 12040, "cuGreenCtxDestroy": 12040, "cuCtxSetLimit": 3010,
    "cuModuleLoad": 2000, "cuModuleLoadData": 2000, "cuModuleLoadDataEx": 2010, "cuModuleLoadFatBinary": 2000,
    "cuModuleUnload": 2000, "cuLibraryLoadData": 12000, "cuLibraryLoadFromFile": 12000, "cuLibraryUnload": 12000,
}
#: Functions that the simulated driver exports but does not support: no display, no tiled arrays.
UNSUPPORTED = {"cuMemMapArrayAsync", "cuMemMapArrayAsync_ptsz", "cuGraphicsMapResources", "cuGraphicsMapResources_ptsz",
               "cuGraphicsUnmapResources", "cuGraphicsUnmapResources_ptsz", "cuGraphicsResourceGetMappedPointer_v2"}


def base_of(name):
    name = name.removesuffix("_ptsz")
    head, _, version = name.rpartition("_v")
    return head if head and version.isdigit() else name


class IpcHandle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


class Driver:
    """The driver's functions by a route; functions outside the table are found by dlsym."""

    def __init__(self, route, folder):
        self.library = ctypes.CDLL(str(folder / "libcuda.so.1"))
        self.linked = ctypes.CDLL(str(folder / "liblinked.so")) if route == "linked" else None
        self.route, self.called = route, set()

    def find(self, name):
        if name not in VERSIONS or self.route == "dlsym":
            return getattr(self.library, name)
        if self.route == "linked":
            address = self.linked.linked_address
            address.restype = ctypes.c_void_p
            return ctypes.CFUNCTYPE(c_int)(address(name.encode()))
        function, status = ctypes.c_void_p(), c_int()
        flags = 2 if name.endswith("_ptsz") else 0
        code = self.library.cuGetProcAddress_v2(
            base_of(name).encode(), byref(function), c_int(VERSIONS[name]), c_uint64(flags), byref(status))
        assert (code, status.value) == (0, 0) and function.value, name
        return ctypes.CFUNCTYPE(c_int)(function.value)

    def result(self, name, *arguments):
        function = self.find(name)
        function.argtypes = None
        if name in VERSIONS:
            self.called.add(name)
        return function(*[c_uint64(value) if isinstance(value, int) else value for value in arguments])

    def __call__(self, name, *arguments):
        code = self.result(name, *arguments)
        assert code == (801 if name in UNSUPPORTED else 0), f"{name} gave {code}"

    def get(self, name, *arguments, at=0):
        """Calls with a place for one result as argument number `at`; returns the result."""
        out = c_uint64()
        self(name, *arguments[:at], byref(out), *arguments[at:])
        return out.value


def words(*values, size=0):
    """Returns a struct of 64-bit words."""
    values = list(values) + [0] * (size // 8 - len(values))
    return (c_uint64 * len(values))(*values)


def pair(low, high):
    return low | high << 32


PROP = words(pair(1, POSIX_FD), pair(DEVICE, 0), 0, 0)  # CUmemAllocationProp
POOL = words(pair(1, POSIX_FD), pair(DEVICE, 0), size=88)  # CUmemPoolProps
FLOAT = 0x20


def exporter(folder):
    """Starts an untraced process that shares memory: IPC handle, pointer and descriptors."""
    ours, theirs = socket.socketpair()
    env = {key: value for key, value in os.environ.items() if key not in ("LD_PRELOAD", "SIMGPU_LOG", "SIMGPU_FAIL")}
    process = subprocess.Popen([sys.executable, __file__, "export", folder, str(theirs.fileno())],
                               pass_fds=[theirs.fileno()], env=env)
    theirs.close()
    data, descriptors, _, _ = socket.recv_fds(ours, 128, 2)
    ours.close()
    assert process.wait() == 0
    return data[:64], data[64:], *descriptors


def export(folder, descriptor):
    call = Driver("dlsym", folder)
    call("cuInit", 0)
    call("cuCtxSetCurrent", call.get("cuDevicePrimaryCtxRetain", 0))
    handle, pointer = IpcHandle(), IpcHandle()
    call("cuIpcGetMemHandle", byref(handle), call.get("cuMemAlloc_v2", 4 * MIB))
    pool = call.get("cuMemPoolCreate", POOL)
    call("cuMemPoolExportPointer", byref(pointer), call.get("cuMemAllocFromPoolAsync", 6 * MIB, pool, 0))
    pool_fd, memory_fd = c_int(), c_int()
    call("cuMemPoolExportToShareableHandle", byref(pool_fd), pool, POSIX_FD, 0)
    call("cuMemExportToShareableHandle", byref(memory_fd), call.get("cuMemCreate", 8 * MIB, PROP, 0), POSIX_FD, 0)
    with socket.socket(fileno=descriptor) as there:
        socket.send_fds(there, [bytes(handle.bytes) + bytes(pointer.bytes)], [pool_fd.value, memory_fd.value])


def linear(call):
    plain = call.get("cuMemAlloc_v2", 4 * MIB)
    pitch = c_uint64()
    pitched = call.get("cuMemAllocPitch_v2", byref(pitch), 1000, 4096, 4)
    assert pitch.value == 1024
    managed = call.get("cuMemAllocManaged", 6 * MIB, 1)
    call("cuMemGetInfo_v2", byref(c_uint64()), byref(c_uint64()))
    moves(call, managed)
    for address in (pitched, managed, plain, 0):
        call("cuMemFree_v2", address)


def moves(call, managed):
    """Moves of managed memory."""
    addresses, sizes, places, first = words(managed, managed + 2 * MIB), words(MIB, 2 * MIB), words(pair(DEVICE, 0)), words(0)
    for twin in ("", "_ptsz"):
        call(f"cuMemPrefetchAsync{twin}", managed, MIB, 0, 0)
        call(f"cuMemPrefetchAsync_v2{twin}", managed, MIB, pair(HOST, 0), 0, 0)
        for name in ("cuMemPrefetchBatchAsync", "cuMemDiscardAndPrefetchBatchAsync"):
            call(f"{name}{twin}", addresses, sizes, 2, places, first, 1, 0, 0)
        call(f"cuMemDiscardBatchAsync{twin}", addresses, sizes, 2, 0, 0)


def host(call):
    for address in (call.get("cuMemAllocHost_v2", 4096), call.get("cuMemHostAlloc", 8192, 1)):
        call("cuMemFreeHost", address)
    buffer = ctypes.create_string_buffer(16384)
    for register in ("cuMemHostRegister", "cuMemHostRegister_v2"):
        call(register, ctypes.addressof(buffer), 16384, 0)
        call("cuMemHostUnregister", ctypes.addressof(buffer))


def pools(call):
    pool = call.get("cuMemPoolCreate", POOL)
    threshold = c_uint64(1 << 40)
    call("cuMemPoolSetAttribute", pool, 4, byref(threshold))
    blocks = [call.get(f"cuMemAllocAsync{twin}", size, 0) for twin, size in (("", 3 * MIB), ("_ptsz", 1000))]
    call("cuDeviceSetMemPool", 0, pool)
    call("cuMemSetMemPool", words(pair(DEVICE, 0)), 1, pool)
    assert call.get("cuMemGetMemPool", words(pair(DEVICE, 0)), 1) == pool
    assert call.get("cuMemGetDefaultMemPool", words(pair(DEVICE, 0)), 1) != pool
    blocks += [call.get(f"cuMemAllocFromPoolAsync{twin}", 7 * MIB, pool, 0) for twin in ("", "_ptsz")]
    shared = IpcHandle()
    call("cuMemPoolExportPointer", byref(shared), blocks[-1])
    reserved = c_uint64()
    call("cuMemPoolGetAttribute", pool, 5, byref(reserved))
    assert reserved.value == 32 * MIB
    for twin, address in zip(("", "_ptsz", "", "_ptsz"), blocks):
        call(f"cuMemFreeAsync{twin}", address, 0)
    call("cuMemPoolTrimTo", pool, 0)
    call("cuMemPoolDestroy", pool)
    off_device_pools(call)
    call("cuCtxSynchronize")  # the default pool releases its cache


def off_device_pools(call):
    """Pools of host memory and of managed memory, created and default ones."""
    made = [call.get("cuMemPoolCreate", words(pair(kind, 0), pair(place, 0), size=88))
            for kind, place in ((1, HOST), (1, HOST_NUMA), (2, DEVICE))]
    made.append(call.get("cuMemGetDefaultMemPool", words(pair(HOST, 0)), 1))
    call("cuMemSetMemPool", words(pair(DEVICE, 0)), 2, made[2])
    for pool in made:
        for twin in ("", "_ptsz"):
            call(f"cuMemFreeAsync{twin}", call.get(f"cuMemAllocFromPoolAsync{twin}", 2 * MIB, pool, 0), 0)
    for pool in made[:3]:
        call("cuMemPoolDestroy", pool)
    call("cuMemFreeAsync", call.get("cuMemAllocAsync", MIB, 0), 0)


def virtual_memory(call):
    size = 4 * MIB
    reserved = call.get("cuMemAddressReserve", 8 * MIB, 0, 0, 0)
    handle = call.get("cuMemCreate", size, PROP, 0)
    call("cuMemMap", reserved, size, 0, handle, 0)
    call("cuMemSetAccess", reserved, size, words(pair(DEVICE, 0), 3), 1)
    assert call.get("cuMemRetainAllocationHandle", reserved) == handle
    descriptor = c_int()
    call("cuMemExportToShareableHandle", byref(descriptor), handle, POSIX_FD, 0)
    call("cuMemRelease", handle)  # still retained and mapped
    call("cuMemUnmap", reserved, size)
    call("cuMemRelease", handle)
    # Released while mapped: the memory stays until it is unmapped.
    handle = call.get("cuMemCreate", size, PROP, 0)
    call("cuMemMap", reserved, size, 0, handle, 0)
    call("cuMemRelease", handle)
    multicast(call, reserved, size)
    call("cuMemUnmap", reserved, size)
    call("cuMemAddressFree", reserved, 8 * MIB)
    for twin in ("", "_ptsz"):
        call(f"cuMemMapArrayAsync{twin}", words(size=128), 1, 0)
    os.close(descriptor.value)


def multicast(call, address, size):
    memory = call.get("cuMemCreate", size, PROP, 0)
    group = call.get("cuMulticastCreate", words(1, size, 0, 0))
    call("cuMulticastAddDevice", group, 0)
    call("cuMulticastBindMem", group, 0, memory, 0, size, 0)
    call("cuMulticastBindMem_v2", group, 0, 0, memory, 0, size, 0)
    call("cuMulticastBindAddr", group, 0, address, size, 0)
    call("cuMulticastBindAddr_v2", group, 0, 0, address, size, 0)
    call("cuMulticastUnbind", group, 0, 0, size)
    call("cuMemRelease", group)
    call("cuMemRelease", memory)


def arrays(call):
    plane = call.get("cuArrayCreate_v2", words(1024, 512, pair(FLOAT, 4)))
    volume = call.get("cuArray3DCreate_v2", words(64, 64, 64, pair(FLOAT, 1), 0))
    deferred = call.get("cuArray3DCreate_v2", words(1024, 1024, 0, pair(FLOAT, 4), 0x80))
    levels = call.get("cuMipmappedArrayCreate", words(1024, 1024, 0, pair(FLOAT, 1), 0), 4)
    for handle in (plane, volume, deferred):
        call("cuArrayDestroy", handle)
    call("cuMipmappedArrayDestroy", levels)


def foreign(call, folder):
    handle_bytes, pointer_bytes, pool_fd, memory_fd = exporter(folder)
    handle, pointer = IpcHandle.from_buffer_copy(handle_bytes), IpcHandle.from_buffer_copy(pointer_bytes)
    own = IpcHandle()
    block = call.get("cuMemAlloc_v2", 2 * MIB)
    call("cuIpcGetMemHandle", byref(own), block)
    assert call.result("cuIpcOpenMemHandle_v2", byref(c_uint64()), own, 1) == 201
    call("cuMemFree_v2", block)
    opened = call.get("cuIpcOpenMemHandle_v2", handle, 1)
    assert call.get("cuIpcOpenMemHandle", handle, 1) == opened
    call("cuIpcCloseMemHandle", opened)
    call("cuIpcCloseMemHandle", opened)

    pool = call.get("cuMemPoolImportFromShareableHandle", pool_fd, POSIX_FD, 0)
    call("cuMemFreeAsync", call.get("cuMemPoolImportPointer", pool, byref(pointer)), 0)
    mine = call.get("cuMemPoolCreate", POOL)
    shared = c_int()
    call("cuMemPoolExportToShareableHandle", byref(shared), mine, POSIX_FD, 0)

    memory = call.get("cuMemImportFromShareableHandle", memory_fd, POSIX_FD)
    reserved = call.get("cuMemAddressReserve", 8 * MIB, 0, 0, 0)
    call("cuMemMap", reserved, 8 * MIB, 0, memory, 0)
    call("cuMemRelease", memory)
    call("cuMemUnmap", reserved, 8 * MIB)
    call("cuMemAddressFree", reserved, 8 * MIB)
    for descriptor in (pool_fd, memory_fd, shared.value):
        os.close(descriptor)

    external = call.get("cuImportExternalMemory", words(1, os.memfd_create("other api"), 0, 16 * MIB, size=104))
    buffer = call.get("cuExternalMemoryGetMappedBuffer", external, words(MIB, 4 * MIB, size=88))
    texture = call.get("cuExternalMemoryGetMappedMipmappedArray", external,
                       words(0, 512, 512, 0, pair(FLOAT, 4), 0, 2, size=128))
    call("cuMemFree_v2", buffer)
    call("cuMipmappedArrayDestroy", texture)
    call("cuDestroyExternalMemory", external)

    for twin in ("", "_ptsz"):
        call(f"cuGraphicsMapResources{twin}", 1, words(0), 0)
        call(f"cuGraphicsUnmapResources{twin}", 1, words(0), 0)
    call("cuGraphicsResourceGetMappedPointer_v2", byref(c_uint64()), byref(c_size_t()), 0)


def node_params(size, kind=1, place=DEVICE):
    return words(pair(kind, 0), pair(place, 0), *[0] * 11, size, 0)


def any_node(kind, *values):
    return words(kind, 0, *values, size=256)


def graphs(call):
    graph = call.get("cuGraphCreate", 0)
    for place, kind in ((HOST, 1), (DEVICE, 2)):
        off_device = node_params(2 * MIB, kind, place)
        call.get("cuGraphAddMemAllocNode", graph, None, 0, off_device)
        call.get("cuGraphAddMemFreeNode", graph, None, 0, off_device[14])
    params = node_params(4 * MIB)
    call.get("cuGraphAddMemAllocNode", graph, None, 0, params)
    first = params[14]
    nodes = [first]
    for name, edges in (("cuGraphAddNode", ()), ("cuGraphAddNode_v2", (None,)), ("cuGraphAddNode_v3", (None,))):
        params = any_node(10, *node_params(2 * MIB))
        call.get(name, graph, None, *edges, 0, params)
        nodes.append(params[16])
    call.get("cuGraphAddMemFreeNode", graph, None, 0, first)
    call.get("cuGraphAddNode_v2", graph, None, None, 0, any_node(11, nodes[1]))
    call.get("cuGraphAddNode_v2", graph, None, None, 0, any_node(5))  # an empty node: no event
    execs = [call.get("cuGraphInstantiate", graph, None, None, 0), call.get("cuGraphInstantiate_v2", graph, None, None, 0),
             call.get("cuGraphInstantiateWithFlags", graph, 1)]
    for twin in ("", "_ptsz"):
        execs.append(call.get(f"cuGraphInstantiateWithParams{twin}", graph, words(1, 0, 0, 0)))
        call(f"cuGraphUpload{twin}", execs[-1], 0)
    call("cuGraphLaunch", execs[0], 0)
    assert call.result("cuGraphLaunch", execs[1], 0) == 1, "two of its blocks are live"
    call("cuMemFree_v2", nodes[2])
    call("cuMemFreeAsync", nodes[3], 0)
    call("cuDeviceGraphMemTrim", 0)
    call("cuGraphLaunch_ptsz", execs[2], 0)
    call("cuGraphLaunch", execs[3], 0)  # frees what the last launch left
    call("cuDeviceGraphMemTrim", 0)  # two blocks are live
    call("cuGraphDestroy", graph)
    for exec_ in execs:
        call("cuGraphExecDestroy", exec_)
    call("cuMemFree_v2", nodes[2])  # no graph can launch it any more, so its memory is freed
    call("cuMemFree_v2", nodes[3])
    moved_child(call)
    captured_graph(call)


def moved_child(call):
    """A graph with memory nodes becomes part of another one, which owns them."""
    parent, child, node = call.get("cuGraphCreate", 0), call.get("cuGraphCreate", 0), c_uint64()
    params = [node_params(4 * MIB), node_params(2 * MIB)]
    for place in params:
        call("cuGraphAddMemAllocNode", byref(node), child, None, 0, place)
    call("cuGraphAddMemFreeNode", byref(node), child, None, 0, params[0][14])
    assert call.result("cuGraphAddNode_v2", byref(node), parent, None, None, 0, any_node(4, child, 0)) == 801, "no clone"
    call("cuGraphAddNode_v2", byref(node), parent, None, None, 0, any_node(4, child, 1))
    assert call.result("cuGraphDestroy", child) == 400, "the parent owns it"
    exec_ = call.get("cuGraphInstantiateWithFlags", parent, 1)
    for _ in range(2):
        call("cuGraphLaunch", exec_, 0)
    call("cuGraphExecDestroy", exec_)
    call("cuMemFreeAsync", params[1][14], 0)
    call("cuGraphDestroy", parent)


def captured_graph(call):
    """Calls on a captured stream become graph nodes."""
    stream = call.get("cuStreamCreate", 1)
    inner = call.get("cuGraphCreate", 0)
    inner_exec = call.get("cuGraphInstantiateWithFlags", inner, 0)
    call("cuStreamBeginCapture_v2", stream, 2)
    kept = call.get("cuMemAllocAsync", 4 * MIB, stream)
    for twin in ("", "_ptsz"):
        address = call.get(f"cuMemAllocAsync{twin}", 2 * MIB, stream)
        call(f"cuMemFreeAsync{twin}", address, stream)
    call("cuGraphLaunch", inner_exec, stream)
    graph = call.get("cuStreamEndCapture", stream, at=1)
    exec_ = call.get("cuGraphInstantiateWithFlags", graph, 0)
    call("cuGraphLaunch", exec_, stream)
    call("cuMemFreeAsync", kept, stream)
    # Captured again, the graph keeps its nodes.
    call("cuStreamBeginRecaptureToGraph", stream, 2, graph, None, None)
    assert call.get("cuMemAllocAsync", 4 * MIB, stream) == kept
    for twin in ("", "_ptsz"):
        call(f"cuMemFreeAsync{twin}", call.get(f"cuMemAllocAsync{twin}", 2 * MIB, stream), stream)
    call("cuGraphLaunch", inner_exec, stream)
    assert call.get("cuStreamEndCapture", stream, at=1) == graph
    call("cuGraphLaunch", exec_, stream)
    call("cuMemFreeAsync", kept, stream)
    for handle in (inner_exec, exec_):
        call("cuGraphExecDestroy", handle)
    for handle in (inner, graph):
        call("cuGraphDestroy", handle)


def contexts(call, primary):
    made = [("cuCtxCreate", ()), ("cuCtxCreate_v2", ()), ("cuCtxCreate_v3", (None, 0)), ("cuCtxCreate_v4", (None,))]
    for number, (create, extra) in enumerate(made):
        context = call.get(create, *extra, 0, 0)
        call.get("cuMemAlloc_v2", 2 * MIB)
        call.get("cuMemAllocManaged", 2 * MIB, 1)
        call.get("cuMemHostAlloc", 4096, 0)
        call.get("cuArrayCreate_v2", words(1024, 512, pair(FLOAT, 4)))
        call(("cuCtxDestroy", "cuCtxDestroy_v2")[number % 2], context)
        call("cuCtxSetCurrent", primary)
    call("cuCtxSetLimit", 2, 16 * MIB)
    resources = call.get("cuDevResourceGenerateDesc", words(0), 1)
    green = call.get("cuGreenCtxCreate", resources, 0, 1)
    call("cuGreenCtxDestroy", green)
    empty = ctypes.create_string_buffer(64)
    modules = [call.get("cuModuleLoad", b"/dev/null"), call.get("cuModuleLoadData", empty),
               call.get("cuModuleLoadDataEx", empty, 0, None, None), call.get("cuModuleLoadFatBinary", empty)]
    for module in modules:
        call("cuModuleUnload", module)
    for name, code in (("cuLibraryLoadData", empty), ("cuLibraryLoadFromFile", b"/dev/null")):
        call("cuLibraryUnload", call.get(name, code, None, None, 0, None, None, 0))
    # The primary context and its blocks end with the last release, or at once by a reset.
    for end in ("cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxRelease",
                "cuDevicePrimaryCtxRelease_v2"):
        call.get("cuMemAlloc_v2", 6 * MIB)
        survivor = call.get("cuMemAllocAsync", MIB, 0)
        if end.startswith("cuDevicePrimaryCtxRelease"):
            call.get("cuDevicePrimaryCtxRetain", 0)
            call(end, 0)  # not the last
        call(end, 0)
        call("cuCtxSetCurrent", call.get("cuDevicePrimaryCtxRetain", 0))
        call("cuMemFreeAsync", survivor, 0)
        call("cuCtxSynchronize")


def work(call, folder):
    call("cuInit", 0)
    primary = call.get("cuDevicePrimaryCtxRetain", 0)
    call("cuCtxSetCurrent", primary)
    kept = call.get("cuMemAlloc_v2", 10 * MIB)
    for part in (linear, host, pools, virtual_memory, arrays, graphs):
        part(call)
    foreign(call, folder)
    call("cuMemFree_v2", kept)
    contexts(call, primary)


def fail(call):
    """A failing call with any arguments crashes nothing and changes no total."""
    call("cuInit", 0)
    buffer = words(10, size=512)
    for name in VERSIONS:
        arguments = [ctypes.addressof(buffer)] * 8
        if name.startswith("cuIpcOpenMemHandle"):
            arguments[1] = IpcHandle()
        code = call.result(name, *arguments)
        assert code == 999, f"{name} gave {code}"


if __name__ == "__main__":
    if sys.argv[1] == "export":
        export(Path(sys.argv[2]), int(sys.argv[3]))
        sys.exit()
    driver = Driver(sys.argv[1], Path(sys.argv[2]))
    if sys.argv[3] == "work":
        work(driver, Path(sys.argv[2]))
    else:
        fail(driver)
    print(*sorted(driver.called))
