"""What PyTorch itself says of its memory on Apple GPUs, handed to the library at steps, marks and the ends of phases.

Constraint: PyTorch keeps buffers that no tensor uses and gives them to later tensors, which no call of Metal shows; its own two numbers are
all there is, and asking for them before it has used the GPU would make it begin to. Consequence: they are asked for where torch is
loaded already and the library says that the program has made a heap; what goes wrong with that is counted in the trace, and never
the program's.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Callable

#: What the library takes for "it did not say".
_NOT_TOLD = 2**64 - 1
_Numbers = ctypes.c_uint64 * 2
_has_said = False


def sample(tell: Callable[[Any], int]) -> None:
    """Tells what PyTorch says now, if anybody wants to know. `tell` is `gpumemtrace_mps_memory` (interpose/src/metal/sampled.rs)."""
    # Of a torch that is only being imported there is no `mps` yet.
    mps = getattr(sys.modules.get("torch"), "mps", None)
    if mps is not None and tell(None):
        tell(_Numbers(_answer(mps, "current_allocated_memory"), _answer(mps, "driver_allocated_memory")))


def _answer(mps: Any, name: str) -> int:
    try:
        said: Any = getattr(mps, name)()
        if isinstance(said, int) and 0 <= said < _NOT_TOLD:
            return said
        _say_once(f"torch.mps.{name}() gave {said!r}")
    except Exception as error:  # noqa: BLE001: whatever it is, the program goes on.
        _say_once(f"torch.mps.{name}() failed: {error!r}")
    return _NOT_TOLD


def _say_once(what: str) -> None:
    global _has_said
    if not _has_said:
        _has_said = True
        try:
            sys.stderr.write(f"gpumemtrace: {what}; what PyTorch's tensors hold is not known then (the report counts how often)\n")
        except Exception:  # noqa: BLE001: as above; there may be no stderr at all.
            pass
