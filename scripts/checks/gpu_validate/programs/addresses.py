"""Reports the exported address and cuGetProcAddress's for each named function."""

from witness import *  # noqa: F403
cuda = driver()
version = cuda.get(ctypes.c_int, "cuDriverGetVersion")
for name in sys.argv[1:]:
    exported = None
    try:
        exported = ctypes.cast(getattr(cuda.library, name), ctypes.c_void_p).value
    except AttributeError:
        pass
    stream = 2 if name.endswith("_ptsz") else 0
    base = name.replace("_ptsz", "")
    base = base[:-3] if base.endswith(("_v2", "_v3")) else base
    found = {}
    for asked in (version, 12000):
        address, status = ctypes.c_void_p(), ctypes.c_int()
        code = cuda.call("cuGetProcAddress_v2", base.encode(), ctypes.byref(address), asked, ctypes.c_uint64(stream), ctypes.byref(status))
        found[asked] = address.value if code == 0 else None
    emit(name=name, exported=exported, found=sorted(found.items()))
