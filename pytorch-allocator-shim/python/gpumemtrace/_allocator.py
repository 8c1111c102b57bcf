"""gpumemtrace as PyTorch's allocator: the functions that PyTorch must be given, and the statistics that it then refuses.

Constraint: PyTorch takes an allocator only before its first CUDA tensor, and tells which streams use a block only to an allocator that
asks for it. Consequence: all of its hooks are given at once, here; only then does the library keep memory (pytorch-allocator-shim/src).
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from types import TracebackType
from typing import Any, Dict, Optional, Type, Union

from ._recording import markers
from ._recording.lifecycle import find_library

#: PyTorch's setters by what they take. 2.3 changed the forms for graphs' pools, and their names.
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
#: Without these, memory could be handed out that is still in use.
_NEEDED = ("set_record_stream_fn", "set_release_pool")

#: PyTorch keeps no reference of its own.
_kept: Any = None


class _Found(ctypes.Structure):
    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


def library_path() -> str:
    """The library that is loaded; else that of this package. PyTorch must be given the file that records already."""
    loaded = markers.find(markers.library(), "gpumemtrace_malloc", None)
    found = _Found()
    if loaded is not None and ctypes.CDLL(None).dladdr(ctypes.cast(loaded, ctypes.c_void_p), ctypes.byref(found)):
        return os.fsdecode(found.file)
    return str(find_library())


def _load(path: str) -> ctypes.CDLL:
    """From now on, what the program says goes there too."""
    if markers.find(markers.library(), "gpumemtrace_malloc", None) is None:
        markers.bind(ctypes.PyDLL(path))
    return ctypes.CDLL(path)


class SegmentMode:
    """PyTorch's own allocator with its segments from gpumemtrace. Ends with `close()`, or as a context manager."""

    def __init__(self, pool: Any, use: Any) -> None:
        #: The `torch.cuda.MemPool`.
        self.pool = pool
        self._use = use
        use.__enter__()

    def close(self) -> None:
        """New tensors come from PyTorch's default pool again. Those that are there stay."""
        use, self._use = self._use, None
        if use is not None:
            use.__exit__(None, None, None)

    def __enter__(self) -> SegmentMode:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]
    ) -> None:
        self.close()


def use_pluggable_allocator(mode: str = "global") -> Any:
    """Makes gpumemtrace PyTorch's allocator.

    "global": for the whole process, before its first CUDA tensor. A caching allocator with the rules of PyTorch's own: side streams,
    CUDA graphs and out-of-memory errors as ever; expandable segments and `torch.cuda.MemPool` are not to be had.
    "segment": under PyTorch's own allocator, which gets its segments from us, for the calling thread (torch 2.5 on). Answers a
    `SegmentMode`.

    Raises `RuntimeError` where PyTorch has an allocator already, `ValueError` for any other mode.
    """
    if mode not in ("global", "segment"):
        raise ValueError(f'the mode is "global" or "segment", not {mode!r}')
    if sys.platform == "darwin":
        raise RuntimeError("PyTorch takes allocators for CUDA only: record its own with `gpumemtrace run` or gpumemtrace.start()")
    torch = importlib.import_module("torch")

    return _install(torch) if mode == "global" else _below(torch)


def _install(torch: Any) -> Any:
    global _kept
    path = library_path()
    library = _load(path)
    plugged = torch.cuda.memory.CUDAPluggableAllocator(path, "gpumemtrace_malloc", "gpumemtrace_free")
    inner = plugged._allocator
    missing = [setter for setter in _NEEDED if not hasattr(inner, setter)]
    if missing:
        raise RuntimeError(
            f"PyTorch {torch.__version__} has no {' and no '.join(missing)} for an allocator: 2.1 is the first that has; "
            "with an older one, record PyTorch's own allocator with `gpumemtrace run`"
        )
    for setter, function in _HOOKS.items():
        if hasattr(inner, setter):
            getattr(inner, setter)(ctypes.cast(getattr(library, function), ctypes.c_void_p).value)
    try:
        torch.cuda.memory.change_current_allocator(plugged)
    except RuntimeError as error:
        raise RuntimeError(
            "PyTorch has its allocator already, and cannot change it: call use_pluggable_allocator() before the first CUDA tensor"
        ) from error
    _kept = plugged
    if not library.gpumemtrace_use_cache():
        raise RuntimeError("tensors were already made with gpumemtrace_malloc: they go on without a cache")
    return plugged


def _below(torch: Any) -> SegmentMode:
    global _kept
    if not hasattr(torch.cuda, "MemPool") or not hasattr(torch.cuda, "use_mem_pool"):
        raise RuntimeError(
            f"PyTorch {torch.__version__} has no torch.cuda.use_mem_pool, which the mode 'segment' needs: 2.5 is the first that has"
        )
    # Before the driver, if it can be: what is loaded after it does not see what it was asked before.
    path = library_path()
    _load(path)
    torch.cuda.init()
    plugged = torch.cuda.memory.CUDAPluggableAllocator(path, "gpumemtrace_segment_malloc", "gpumemtrace_segment_free")
    _kept = plugged
    pool = torch.cuda.MemPool(plugged.allocator())
    return SegmentMode(pool, torch.cuda.use_mem_pool(pool))


def _statistics(torch: Any, device: Union[None, int, str, Any]) -> Optional[str]:
    """What the library's cache says of a device; None if it is not PyTorch's allocator."""
    write = getattr(ctypes.CDLL(library_path()), "gpumemtrace_memory_stats", None) if _kept is not None else None
    length = write(_ordinal(torch, device), None, 0) if write is not None else 0
    if write is None or length == 0:
        return None
    # Figures may have grown by some digits meanwhile.
    buffer = ctypes.create_string_buffer(length + 4096)
    write(_ordinal(torch, device), buffer, len(buffer))
    return buffer.value.decode()


def _ordinal(torch: Any, device: Union[None, int, str, Any]) -> int:
    if device is None:
        return int(torch.cuda.current_device())
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return int(torch.cuda.current_device() if index is None else index)


def memory_stats(device: Union[None, int, str, Any] = None) -> Dict[str, int]:
    """`torch.cuda.memory_stats()`, also under `use_pluggable_allocator()`, where PyTorch refuses it; with the same names and meanings.

    Figures of settings that the allocator does not have (`oversize_*`, `max_split_size`) are left out then.
    """
    torch = importlib.import_module("torch")

    text = _statistics(torch, device)
    if text is None:
        return dict(torch.cuda.memory_stats(device))
    pairs = (line.split() for line in text.splitlines())
    return dict(sorted((name, int(value)) for name, value in pairs))


def reset_peak_memory_stats(device: Union[None, int, str, Any] = None) -> None:
    """`torch.cuda.reset_peak_memory_stats()`, also under `use_pluggable_allocator()`."""
    torch = importlib.import_module("torch")

    if _statistics(torch, device) is None:
        torch.cuda.reset_peak_memory_stats(device)
    else:
        ctypes.CDLL(library_path()).gpumemtrace_reset_memory_stats(_ordinal(torch, device), 0)
