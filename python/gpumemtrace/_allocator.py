"""gpumemtrace as PyTorch's allocator, and the statistics that PyTorch then refuses.

PyTorch accepts a pluggable allocator only before the first CUDA tensor, and reports the streams
that use a block only through a hook. So all hooks are installed together, before the cache is
enabled; without the hooks the library must not cache.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from types import TracebackType
from typing import Any, Dict, Optional, Type, Union

from ._recording.lifecycle import find_library
from ._recording.markers import bind_library, bound_library, find_function

#: Setters of PyTorch's allocator, and the library function for each. PyTorch 2.3 changed names and
#: signatures of the setters for the pools of CUDA graphs.
_HOOKS = {
    "set_record_stream_fn": "gpumemtrace_record_stream",
    "set_reset_fn": "gpumemtrace_empty_cache",
    "set_memory_fraction_fn": "gpumemtrace_set_memory_fraction",
    "set_base_alloc_fn": "gpumemtrace_base_alloc",
    "set_begin_allocate_to_pool": "gpumemtrace_begin_allocate_to_pool",
    "set_end_allocate_to_pool_fn": "gpumemtrace_end_allocate_to_pool",
    "set_begin_allocate_stream_to_pool": "gpumemtrace_begin_allocate_stream_to_pool",
    "set_end_allocate_stream_to_pool_fn": "gpumemtrace_end_allocate_stream_to_pool",
    "set_release_pool": "gpumemtrace_release_pool",
}
#: Without these, the cache could reuse memory that is still in use.
_REQUIRED_HOOKS = ("set_record_stream_fn", "set_release_pool")

#: The installed allocator; PyTorch keeps no reference of its own.
_installed: Any = None


class _DlInfo(ctypes.Structure):
    """The `Dl_info` that dladdr(3) fills in."""

    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


def library_path() -> str:
    """The loaded library, or else that of this package. PyTorch must get the one that records."""
    loaded = find_function(bound_library(), "gpumemtrace_malloc", None)
    info = _DlInfo()
    if loaded is not None and ctypes.CDLL(None).dladdr(ctypes.cast(loaded, ctypes.c_void_p), ctypes.byref(info)):
        return os.fsdecode(info.file)
    return str(find_library())


def _load_library(path: str) -> ctypes.CDLL:
    """Loads the library, and sends the program's markers to it."""
    if find_function(bound_library(), "gpumemtrace_malloc", None) is None:
        bind_library(ctypes.PyDLL(path))
    return ctypes.CDLL(path)


class SegmentAllocator:
    """PyTorch's own allocator, with segments from gpumemtrace, until `close()`.

    Also a context manager. `pool` is the `torch.cuda.MemPool`.
    """

    def __init__(self, pool: Any, use: Any) -> None:
        self.pool = pool
        self._use = use
        use.__enter__()

    def close(self) -> None:
        """Makes new tensors come from PyTorch's default pool again. Existing tensors stay valid."""
        use, self._use = self._use, None
        if use is not None:
            use.__exit__(None, None, None)

    def __enter__(self) -> SegmentAllocator:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]
    ) -> None:
        self.close()


def use_pluggable_allocator(mode: str = "global") -> Any:
    """Makes gpumemtrace PyTorch's allocator.

    "global" replaces PyTorch's allocator in the whole process, before its first CUDA tensor. It is
    a caching allocator with the rules of PyTorch's own, for side streams, CUDA graphs and
    out-of-memory errors too. Expandable segments and `torch.cuda.MemPool` are not supported.
    Returns PyTorch's allocator object.

    "segment" keeps PyTorch's own allocator, which gets its segments from gpumemtrace, for the
    calling thread (torch 2.5 and later). Returns a `SegmentAllocator`.

    Raises `ValueError` for any other mode, and `RuntimeError` if PyTorch has already chosen its
    allocator or is too old.
    """
    if mode not in ("global", "segment"):
        raise ValueError(f'mode must be "global" or "segment", not {mode!r}')
    if sys.platform == "darwin":
        raise RuntimeError(
            "PyTorch has pluggable allocators for CUDA only: record its own one with `gpumemtrace run` or gpumemtrace.start()"
        )
    torch = importlib.import_module("torch")

    return _install_globally(torch) if mode == "global" else _install_below_torch(torch)


def _install_globally(torch: Any) -> Any:
    global _installed
    path = library_path()
    library = _load_library(path)
    allocator = torch.cuda.memory.CUDAPluggableAllocator(path, "gpumemtrace_malloc", "gpumemtrace_free")
    inner = allocator._allocator
    missing = [setter for setter in _REQUIRED_HOOKS if not hasattr(inner, setter)]
    if missing:
        raise RuntimeError(
            f"PyTorch {torch.__version__} lacks the allocator hook {' and '.join(missing)}, which mode 'global' needs: use torch "
            "2.1 or later, or record PyTorch's own allocator with `gpumemtrace run`"
        )
    for setter, function in _HOOKS.items():
        if hasattr(inner, setter):
            getattr(inner, setter)(ctypes.cast(getattr(library, function), ctypes.c_void_p).value)
    try:
        torch.cuda.memory.change_current_allocator(allocator)
    except RuntimeError as error:
        raise RuntimeError(
            "PyTorch has already initialized its allocator: call use_pluggable_allocator() before the first CUDA tensor"
        ) from error
    _installed = allocator
    # PyTorch's rules and settings differ from release to release.
    library.gpumemtrace_configure_cache(str(torch.__version__).encode())
    if not library.gpumemtrace_use_cache():
        raise RuntimeError("tensors were already allocated with gpumemtrace_malloc alone: this process goes on without a cache")
    return allocator


def _install_below_torch(torch: Any) -> SegmentAllocator:
    global _installed
    if not hasattr(torch.cuda, "MemPool") or not hasattr(torch.cuda, "use_mem_pool"):
        raise RuntimeError(
            f"PyTorch {torch.__version__} has no torch.cuda.use_mem_pool, which mode 'segment' needs: use torch 2.5 or later"
        )
    # Load the library before the driver if possible: it cannot intercept earlier symbol lookups.
    path = library_path()
    _load_library(path)
    torch.cuda.init()
    allocator = torch.cuda.memory.CUDAPluggableAllocator(path, "gpumemtrace_segment_malloc", "gpumemtrace_segment_free")
    _installed = allocator
    pool = torch.cuda.MemPool(allocator.allocator())
    return SegmentAllocator(pool, torch.cuda.use_mem_pool(pool))


def _cache_statistics(torch: Any, device: Union[None, int, str, Any]) -> Optional[str]:
    """The statistics of the library's cache, as `name value` lines; `None` if it is not in use."""
    write = getattr(ctypes.CDLL(library_path()), "gpumemtrace_memory_stats", None) if _installed is not None else None
    length = write(_device_index(torch, device), None, 0) if write is not None else 0
    if write is None or length == 0:
        return None
    # The values may gain digits between the two calls.
    buffer = ctypes.create_string_buffer(length + 4096)
    write(_device_index(torch, device), buffer, len(buffer))
    return buffer.value.decode()


def _device_index(torch: Any, device: Union[None, int, str, Any]) -> int:
    if device is None:
        return int(torch.cuda.current_device())
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return int(torch.cuda.current_device() if index is None else index)


def memory_stats(device: Union[None, int, str, Any] = None) -> Dict[str, int]:
    """`torch.cuda.memory_stats()`, which PyTorch refuses under `use_pluggable_allocator()`.

    Names and meanings are PyTorch's. Sizes are in bytes.
    """
    torch = importlib.import_module("torch")

    text = _cache_statistics(torch, device)
    if text is None:
        return dict(torch.cuda.memory_stats(device))
    pairs = (line.split() for line in text.splitlines())
    return dict(sorted((name, int(value)) for name, value in pairs))


def reset_peak_memory_stats(device: Union[None, int, str, Any] = None) -> None:
    """`torch.cuda.reset_peak_memory_stats()`, also under `use_pluggable_allocator()`."""
    torch = importlib.import_module("torch")

    if _cache_statistics(torch, device) is None:
        torch.cuda.reset_peak_memory_stats(device)
    else:
        ctypes.CDLL(library_path()).gpumemtrace_reset_memory_stats(_device_index(torch, device), 0)
