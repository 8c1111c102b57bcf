"""Samples of PyTorch's memory counters on Apple GPUs.

PyTorch keeps freed buffers and reuses them for later tensors, and no Metal call shows that. Its two
counters in `torch.mps` are the only source. Reading them would initialize the GPU, so they are read
only if torch is imported and the library has seen the program create a heap. A failed read is
counted in the trace and never reaches the program.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Callable

from .._text import printable

#: What the library takes for "unknown".
_UNKNOWN = 2**64 - 1
_CounterPair = ctypes.c_uint64 * 2
_has_warned = False


def sample(report_memory: Callable[[Any], int]) -> None:
    """Reads both counters and passes them to the library, if it wants a sample now.

    `report_memory` is the library's `gpumemtrace_mps_memory`: called with `None`, it returns
    whether a sample is wanted.
    """
    # A torch that is still being imported has no `mps` yet.
    mps = getattr(sys.modules.get("torch"), "mps", None)
    if mps is not None and report_memory(None):
        report_memory(_CounterPair(_read(mps, "current_allocated_memory"), _read(mps, "driver_allocated_memory")))


def _read(mps: Any, name: str) -> int:
    try:
        value: Any = getattr(mps, name)()
        if isinstance(value, int) and 0 <= value < _UNKNOWN:
            return value
        _warn_once(f"torch.mps.{name}() returned {value!r}")
    except Exception as error:  # The program must go on, whatever torch.mps raises.
        _warn_once(f"torch.mps.{name}() failed: {error!r}")
    return _UNKNOWN


def _warn_once(what: str) -> None:
    global _has_warned
    if not _has_warned:
        _has_warned = True
        try:
            sys.stderr.write(f"gpumemtrace: {printable(what)}; these samples are unknown (the report counts them)\n")
        except Exception:  # stderr may be closed or missing.
            pass
