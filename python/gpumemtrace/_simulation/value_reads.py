"""Notes each line that reads placeholders from the GPU. After it, the program may go another way
than on a real GPU.

The simulated driver calls back when a thread copies bytes to the host that were not computed. No
function of PyTorch is replaced, so `torch.jit`, `torch.func` and `torch.compile` work as always.
"""

import atexit
import ctypes
import os
import sys
from typing import Dict, Tuple

from .endless_loops import ENDLESS, endless_loop

SHOWN = 8

#: How often each (file, line) read placeholders.
_reads: Dict[Tuple[str, int], int] = {}
_is_reported = False
#: The folder of PyTorch.
_library = ""


def install() -> None:
    """Asks the simulated driver to call back, and to hook what it hooks before it is used."""
    global _library
    import torch  # type: ignore[import-not-found]

    _library = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
    driver = ctypes.CDLL("libcuda.so.1")
    driver.simgpuOnUnknownRead(ctypes.cast(_callback, ctypes.c_void_p))
    # Deterministic algorithms fill what a kernel overwrites with NaN. Here it stays NaN.
    deterministic = getattr(torch.utils, "deterministic", None)
    if deterministic is not None:
        deterministic.fill_uninitialized_memory = False
    # A program may make its model before it uses the GPU.
    driver.simgpuHookInitializers()
    atexit.register(_end)


def _end() -> None:
    """Threads of PyTorch may still copy when Python is gone."""
    ctypes.CDLL("libcuda.so.1").simgpuOnUnknownRead(None)
    report_reads()


def _on_read() -> None:
    """Notes the innermost line outside PyTorch."""
    frame = sys._getframe(0).f_back
    while frame is not None and frame.f_code.co_filename.startswith(_library):
        frame = frame.f_back
    # A thread of PyTorch's own has no Python code.
    if frame is None:
        return
    key = (frame.f_code.co_filename, frame.f_lineno)
    _reads[key] = _reads.get(key, 0) + 1
    loop = endless_loop(frame)
    if loop is not None:
        _leave_loop(*loop)


def _leave_loop(file: str, line: int) -> None:
    """Ends the program: an exception cannot pass through PyTorch's code that is reading."""
    sys.stdout.flush()
    report_reads()
    sys.stderr.write(
        f"gpumemtrace: {_shown(file)}:{line}: this loop waits for a result that is not computed here, "
        f"and did {ENDLESS:,} rounds; the program ends. Give the loop a limit, or use --steps\n"
    )
    sys.stderr.flush()
    os._exit(1)


def _shown(file: str) -> str:
    return file if file.startswith("<") else os.path.relpath(file)


#: The driver keeps its address, so it lives as long as the process.
_callback = ctypes.CFUNCTYPE(None)(_on_read)


def report_reads() -> None:
    """Prints the lines, those that were reached most often first."""
    global _is_reported
    if _is_reported or not _reads:
        return
    _is_reported = True
    ordered = sorted(_reads.items(), key=lambda entry: -entry[1])
    lines = [
        "gpumemtrace: the program read results that are not computed here, mostly zeros; "
        "on a real GPU it may do something else:"
    ]
    for (file, line), count in ordered[:SHOWN]:
        times = "once" if count == 1 else f"{count} times"
        lines.append(f"  {_shown(file)}:{line}, {times}")
    if len(ordered) > SHOWN:
        lines.append(f"  and {len(ordered) - SHOWN} more lines")
    sys.stderr.write("\n".join(lines) + "\n")
