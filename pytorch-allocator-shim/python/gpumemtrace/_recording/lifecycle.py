"""A recording that the program starts and ends itself, where nobody could start it with `gpumemtrace run`: notebooks, services.

Constraint: what is loaded into a running process sees only what it can still get between. Consequence: started before the first
use of CUDA, it records everything from then on; after that PyTorch's blocks alone, and what PyTorch holds by then is told from PyTorch's
own snapshot, by the line that calls `start()`. The trace says which of these it was (interpose/src/started.rs). On macOS Metal's classes can be got
between at any time; what PyTorch holds by then is not told there.
"""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Union

from .._command import find_command
from .._platform import library_name
from . import markers

#: What the library answers to who starts it.
_EVERYTHING, _WITHOUT_DRIVER, _ALREADY, _OVER, _NO_DEVICE = 0, 1, 2, 3, 4
#: What an entry of a snapshot is.
_BLOCK, _SEGMENT, _MAPPED = 0, 1, 2

_stop: Any = None


class _Held(ctypes.Structure):
    """An entry of PyTorch's snapshot, as the library takes it."""

    _fields_ = [
        ("device", ctypes.c_uint32),
        ("what", ctypes.c_uint32),
        ("addr", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("requested", ctypes.c_uint64),
        ("stream", ctypes.c_uint64),
        ("pool", ctypes.c_uint64 * 2),
        ("allocated", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64),
    ]


class _Looker:
    """Sees each import: libraries that came with one are looked after at the next. Finds nothing itself."""

    def __init__(self, look_again: Any) -> None:
        self._look_again = look_again

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        self._look_again()


def start(
    output: Union[None, str, "os.PathLike[str]"] = None,
    *,
    stacks: Optional[str] = None,
    rotate: Optional[str] = None,
    keep: Optional[str] = None,
    tracker: Optional[str] = None,
) -> None:
    """Records this process from now on, as `gpumemtrace run` with the options of these names does from its start.

    Best before the first use of CUDA, such as `torch.cuda.is_available()`: after that no call of the driver is recorded, PyTorch's blocks
    alone are, and one line says so. Where the process is recorded already, it does nothing. Raises `RuntimeError` where a recording of it
    has ended, and `FileNotFoundError` where the folder of the trace or the library is not there.
    """
    global _stop
    settings = {"STACKS": stacks, "ROTATE": rotate, "KEEP": keep, "TRACKER": tracker}
    if output is not None:
        settings["OUTPUT"] = _file(output)
    if markers._trace is not None and _stop is None and _loaded("gpumemtrace_start"):
        library = ctypes.PyDLL(None)
    else:
        library = ctypes.PyDLL(str(find_library()))
    begins = markers.find(library, "gpumemtrace_start", ctypes.c_int)
    if begins is None:
        raise RuntimeError(f"{library._name} is the library of another version of this package")
    before = {name: os.environ.get("GPUMEMTRACE_" + name) for name in settings}
    # Read when the recording begins, which is with the first GPU call.
    _set(settings)
    answer = begins()
    markers.bind(library)
    # Lets go of the GIL: it waits for the trace to be written.
    _stop = markers.find(ctypes.CDLL(library._name), "gpumemtrace_stop", ctypes.c_int)
    if answer not in (_EVERYTHING, _WITHOUT_DRIVER):
        _set(before, also_none=True)
    if answer == _OVER:
        raise RuntimeError(
            "no recording can be started: one of this process has ended, or it is the child of one that is recorded; "
            "a process is recorded once"
        )
    if answer == _NO_DEVICE:
        raise RuntimeError("no recording can be started: Metal has no GPU for this process")
    if answer not in (_EVERYTHING, _WITHOUT_DRIVER, _ALREADY):
        raise RuntimeError("no recording can be started: an internal error of gpumemtrace; please report it")
    if answer == _ALREADY:
        return
    look_again = markers.find(library, "gpumemtrace_look_again", None)
    if look_again is not None:
        sys.meta_path.insert(0, _Looker(look_again))
    _tell_what_is_held(library, answer)


def is_started() -> bool:
    """Whether the process is recorded, or will be from its first GPU call on; also if the recording has ended."""
    return _stop is not None or _loaded("gpumemtrace_start")


def stop() -> Optional[str]:
    """Ends the recording, however it was started, and finishes its trace, whose file it returns; `None` if there is none.

    What comes later is not recorded, and no other recording of this process can be started. To call it again does nothing.
    """
    global _stop
    path = markers.trace_path() if markers.is_recording() else None
    ends = _stop or markers.find(ctypes.CDLL(None), "gpumemtrace_stop", ctypes.c_int)
    if ends is not None:
        ends()
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Looker)]
    return path


def find_library() -> Path:
    """The library that was installed with this package, or that belongs to its command."""
    named = os.environ.get("GPUMEMTRACE_LIB")
    candidates: List[Path] = [Path(named)] if named else []
    name = library_name()
    candidates.append(Path(__file__).resolve().parent.parent / "lib" / name)
    try:
        command = Path(find_command()).resolve()
        candidates += [command.parent / name, command.parent.parent / "lib" / name]
    except FileNotFoundError:
        pass
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(f"{name} is not there; install the package with its library, or set GPUMEMTRACE_LIB to it")


def _loaded(name: str) -> bool:
    return getattr(ctypes.PyDLL(None), name, None) is not None


def _file(output: Union[str, "os.PathLike[str]"]) -> str:
    path = os.path.join(os.getcwd(), os.fspath(output))
    if path.endswith("/") or os.path.isdir(path):
        path = os.path.join(path, "run.rank%r.trace" if os.environ.get("RANK") else "run.trace")
    folder = os.path.dirname(path)
    if "%" not in folder and not os.path.isdir(folder):
        raise FileNotFoundError(f"there is no folder {folder} for the trace; make it first")
    return path


def _set(settings: Dict[str, Optional[str]], also_none: bool = False) -> None:
    for name, value in settings.items():
        if value is not None:
            os.environ["GPUMEMTRACE_" + name] = value
        elif also_none:
            os.environ.pop("GPUMEMTRACE_" + name, None)


def _tell_what_is_held(library: ctypes.PyDLL, answer: int) -> None:
    """PyTorch's allocator is older than the recording: its tracker is attached now, and what it holds is told entry by entry."""
    torch = sys.modules.get("torch")
    if torch is None or sys.platform == "darwin":
        # For Apple GPUs PyTorch has neither a tracker nor a snapshot, and to ask it for anything would set the GPU up.
        return
    if not torch.cuda.is_initialized():
        # Where the driver was there before us, none of its calls says when the allocator begins; PyTorch does.
        when_initialized = getattr(torch.cuda, "_lazy_call", None)
        if answer == _WITHOUT_DRIVER and when_initialized is not None:
            when_initialized(markers.find(library, "gpumemtrace_attach", ctypes.c_int))
        return
    tracks_segments = markers.find(library, "gpumemtrace_attach", ctypes.c_int)() == 1
    held = markers.find(library, "gpumemtrace_held", None, ctypes.c_void_p)
    try:
        segments = torch.cuda.memory_snapshot()
    except Exception as error:  # Of allocators that have none: the program must go on.
        warnings.warn(f"what PyTorch held before gpumemtrace.start() is not known: {error}", RuntimeWarning, stacklevel=3)
        return
    for entry in _entries(segments, tracks_segments):
        held(ctypes.byref(entry))


def _entries(segments: List[Dict[str, Any]], tracks_segments: bool) -> Iterator[_Held]:
    reserved: Dict[int, int] = {}
    allocated: Dict[int, int] = {}
    for segment in segments:
        device = segment["device"]
        reserved[device] = reserved.get(device, 0) + segment["total_size"]
        if tracks_segments:
            what = _MAPPED if segment.get("is_expandable") else _SEGMENT
            yield _entry(segment, segment["address"], segment["total_size"], 0, (what, 0, reserved[device]))
    for segment in segments:
        device, address = segment["device"], segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                allocated[device] = allocated.get(device, 0) + block["size"]
                totals = (_BLOCK, allocated[device], reserved[device])
                yield _entry(segment, address, block["size"], block.get("requested_size", 0), totals)
            # Blocks lie one behind the other; older versions of PyTorch do not say where.
            address += block["size"]


def _entry(segment: Dict[str, Any], address: int, size: int, requested: int, totals: Any) -> _Held:
    # Only newer versions tell the pool.
    pool = segment.get("segment_pool_id") or (2**64 - 1, 2**64 - 1)
    what, allocated, reserved = totals
    return _Held(
        segment["device"], what, address, size, requested, segment["stream"], (ctypes.c_uint64 * 2)(*pool), allocated, reserved
    )
