"""Makes each query during a stream capture, in each capture mode, and reports its effect."""

from witness import *  # noqa: F403
cuda = driver_with_context()
pointer = cuda.get(ctypes.c_uint64, "cuMemAlloc_v2", ctypes.c_size_t(1 << 21))
stream = ctypes.c_void_p(cuda.get(ctypes.c_void_p, "cuStreamCreate", 1))
pool = ctypes.c_void_p(cuda.get(ctypes.c_void_p, "cuDeviceGetDefaultMemPool", 0))
room = [ctypes.byref((ctypes.c_uint64 * 8)()) for _ in range(2)]
queries = {
    "nothing": lambda: 0,
    "cuCtxGetDevice": lambda: cuda.call("cuCtxGetDevice", room[0]),
    "cuMemGetInfo_v2": lambda: cuda.call("cuMemGetInfo_v2", *room),
    "cuPointerGetAttribute (memory type)": lambda: cuda.call("cuPointerGetAttribute", room[0], 2, ctypes.c_uint64(pointer)),
    "cuPointerGetAttribute (device)": lambda: cuda.call("cuPointerGetAttribute", room[0], 9, ctypes.c_uint64(pointer)),
    "cuMemPoolGetAttribute (used)": lambda: cuda.call("cuMemPoolGetAttribute", pool, 7, room[0]),
    "cuMemAlloc_v2": lambda: cuda.call("cuMemAlloc_v2", room[0], ctypes.c_size_t(1 << 21)),
    "cuMemFree_v2": lambda: cuda.call("cuMemFree_v2", ctypes.c_uint64(spare.pop())),
}
spare = [cuda.get(ctypes.c_uint64, "cuMemAlloc_v2", ctypes.c_size_t(1 << 21)) for _ in range(3)]
for mode, name in enumerate(("global", "thread local", "relaxed")):
    for query, ask in queries.items():
        code = cuda.call("cuStreamBeginCapture_v2", stream, mode)
        if code:
            give_up("cuStreamBeginCapture_v2 returns %d" % code)
        result = ask()
        status, graph = ctypes.c_int(), ctypes.c_void_p()
        cuda.call("cuStreamIsCapturing", stream, ctypes.byref(status))
        end = cuda.call("cuStreamEndCapture", stream, ctypes.byref(graph))
        if graph.value:
            cuda.call("cuGraphDestroy", graph)
        emit(mode=name, query=query, result=result, status=status.value, end=end)
exit_now()
