"""Notes each line that reads placeholders from the GPU, so that the program may not do what it does
on a real GPU.

The simulated driver calls back when a thread copies bytes to the host that no kernel has computed.
Nothing of PyTorch is replaced, so `torch.jit`, `torch.func` and `torch.compile` work as always.
"""

import atexit
import ctypes
import os
import sys
from typing import Dict, Tuple

SHOWN = 8

#: How often each (file, line) read placeholders.
_reads: Dict[Tuple[str, int], int] = {}
_is_reported = False
#: The folder of PyTorch.
_library = ""


def install() -> None:
    """Asks the simulated driver to call back."""
    global _library
    import torch  # type: ignore[import-not-found]

    _library = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
    ctypes.CDLL("libcuda.so.1").simgpuOnUnknownRead(ctypes.cast(_callback, ctypes.c_void_p))
    atexit.register(report_reads)


def _on_read() -> None:
    """Notes the innermost line outside PyTorch."""
    frame = sys._getframe(0).f_back
    while frame is not None and frame.f_code.co_filename.startswith(_library):
        frame = frame.f_back
    # A thread of PyTorch's own has no Python code.
    if frame is not None:
        key = (frame.f_code.co_filename, frame.f_lineno)
        _reads[key] = _reads.get(key, 0) + 1


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
        lines.append(f"  {os.path.relpath(file) if not file.startswith('<') else file}:{line}, {times}")
    if len(ordered) > SHOWN:
        lines.append(f"  and {len(ordered) - SHOWN} more lines")
    sys.stderr.write("\n".join(lines) + "\n")
