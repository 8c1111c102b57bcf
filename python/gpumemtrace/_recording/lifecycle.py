"""`start()` and `stop()`: a recording that the program controls itself.

Use this where you cannot use `gpumemtrace run`, for example in a notebook or a service. A library
that is loaded into a running process intercepts only what it can still patch. Started before the
first use of CUDA, it records everything from then on. Started later, it records PyTorch's blocks
but no driver calls, and takes what PyTorch already holds from PyTorch's own snapshot. The trace
says which of these applies. On macOS, Metal's classes can be patched at any time, but memory that
PyTorch already holds stays unknown.
"""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from pathlib import Path
from typing import Any, Dict, List, Optional, Union

from .._command import find_command
from .._platform import library_name
from .markers import bind_library, find_function, has_library, is_recording, trace_path
from .torch_snapshot import snapshot_entries

#: Results of `gpumemtrace_start`.
_STARTED, _STARTED_WITHOUT_DRIVER, _ALREADY_STARTED, _ALREADY_ENDED, _NO_DEVICE = 0, 1, 2, 3, 4

#: The library's `gpumemtrace_stop`, once `start()` has been called.
_stop: Any = None


class _ImportWatcher:
    """Calls back at each import, so that libraries loaded by an earlier import get patched.

    It is a finder on `sys.meta_path` that finds nothing.
    """

    def __init__(self, on_import: Any) -> None:
        self._on_import = on_import

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        self._on_import()


def start(
    output: Union[None, str, "os.PathLike[str]"] = None,
    *,
    stacks: Optional[str] = None,
    rotate: Optional[str] = None,
    max_total_size: Optional[str] = None,
    torch_details: bool = True,
) -> None:
    """Records this process from now on. The options are those of `gpumemtrace run`.

    `output` is the path of the trace, or a folder for it. Sizes are strings such as "1GiB".
    `torch_details=False` is `--no-torch-details`.

    Call it before the first use of CUDA, such as `torch.cuda.is_available()`. Later, only PyTorch's
    blocks are recorded and no driver calls; a line on stderr says so. If the process is already
    being recorded, it does nothing.

    Raises `RuntimeError` if an earlier recording of this process has ended, or if the process is a
    fork of a recorded one. Raises `FileNotFoundError` if the trace's folder or the library does not
    exist.
    """
    global _stop
    settings = {"STACKS": stacks, "ROTATE": rotate, "MAX_TOTAL_SIZE": max_total_size}
    if not torch_details:
        settings["TORCH_DETAILS"] = "off"
    if output is not None:
        settings["OUTPUT"] = _trace_file(output)
    if has_library() and _stop is None and _is_loaded("gpumemtrace_start"):
        library = ctypes.PyDLL(None)
    else:
        library = ctypes.PyDLL(str(find_library()))
    start_recording = find_function(library, "gpumemtrace_start", ctypes.c_int)
    if start_recording is None:
        raise RuntimeError(f"{library._name} belongs to another version of gpumemtrace")
    before = {name: os.environ.get("GPUMEMTRACE_" + name) for name in settings}
    # The library reads them when recording begins, with the first GPU call.
    _set_variables(settings)
    result = start_recording()
    bind_library(library)
    # A CDLL releases the GIL: the call waits until the trace is written.
    _stop = find_function(ctypes.CDLL(library._name), "gpumemtrace_stop", ctypes.c_int)
    if result not in (_STARTED, _STARTED_WITHOUT_DRIVER):
        _set_variables(before, remove_unset=True)
    if result == _ALREADY_ENDED:
        raise RuntimeError(
            "cannot start a recording: an earlier one of this process has ended, or the process is a fork of a "
            "recorded one; a process can be recorded only once"
        )
    if result == _NO_DEVICE:
        raise RuntimeError("cannot start a recording: Metal reports no GPU")
    if result not in (_STARTED, _STARTED_WITHOUT_DRIVER, _ALREADY_STARTED):
        raise RuntimeError("cannot start a recording: internal error of gpumemtrace; please report it")
    if result == _ALREADY_STARTED:
        return
    patch_new_libraries = find_function(library, "gpumemtrace_look_again", None)
    if patch_new_libraries is not None:
        sys.meta_path.insert(0, _ImportWatcher(patch_new_libraries))
    _attach_to_torch(library, result)


def is_started() -> bool:
    """Whether the process is recorded, or will be from its first GPU call on.

    Stays true after the recording has ended.
    """
    return _stop is not None or _is_loaded("gpumemtrace_start")


def stop() -> Optional[str]:
    """Ends the recording, however it was started, and completes the trace. Returns its path.

    Returns `None` if the process is not being recorded. The process cannot be recorded again. A
    second call does nothing.
    """
    global _stop
    path = trace_path() if is_recording() else None
    stop_recording = _stop or find_function(ctypes.CDLL(None), "gpumemtrace_stop", ctypes.c_int)
    if stop_recording is not None:
        stop_recording()
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _ImportWatcher)]
    return path


def find_library() -> Path:
    """The library in GPUMEMTRACE_LIB, or else that of this package, or that of its command.

    Raises `FileNotFoundError` if there is none.
    """
    configured = os.environ.get("GPUMEMTRACE_LIB")
    candidates: List[Path] = [Path(configured)] if configured else []
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
    raise FileNotFoundError(f"{name} was not found; reinstall the package, or set GPUMEMTRACE_LIB to its path")


def _is_loaded(function: str) -> bool:
    return getattr(ctypes.PyDLL(None), function, None) is not None


def _trace_file(output: Union[str, "os.PathLike[str]"]) -> str:
    path = os.path.join(os.getcwd(), os.fspath(output))
    if os.path.isdir(path):
        path = os.path.join(path, "")  # The library chooses the file in it.
    folder = os.path.dirname(path)
    if "%" not in folder and not os.path.isdir(folder):
        raise FileNotFoundError(f"the trace's folder {folder} does not exist; create it first")
    return path


def _set_variables(settings: Dict[str, Optional[str]], remove_unset: bool = False) -> None:
    for name, value in settings.items():
        if value is not None:
            os.environ["GPUMEMTRACE_" + name] = value
        elif remove_unset:
            os.environ.pop("GPUMEMTRACE_" + name, None)


def _attach_to_torch(library: ctypes.PyDLL, result: int) -> None:
    """Attaches to PyTorch's allocator and passes what it already holds to the library."""
    torch = sys.modules.get("torch")
    if torch is None or sys.platform == "darwin":
        # PyTorch has no tracker or snapshot for Apple GPUs, and any call would initialize the GPU.
        return
    if not torch.cuda.is_initialized():
        # Without driver calls, only PyTorch itself knows when its allocator starts.
        when_initialized = getattr(torch.cuda, "_lazy_call", None)
        if result == _STARTED_WITHOUT_DRIVER and when_initialized is not None:
            when_initialized(find_function(library, "gpumemtrace_attach", ctypes.c_int))
        return
    tracks_segments = find_function(library, "gpumemtrace_attach", ctypes.c_int)() == 1
    record_entry = find_function(library, "gpumemtrace_held", None, ctypes.c_void_p)
    try:
        segments = torch.cuda.memory_snapshot()
    except Exception as error:  # Some allocators have no snapshot; the program must go on.
        warnings.warn(
            f"memory that PyTorch held before gpumemtrace.start() is unknown: {error}", RuntimeWarning, stacklevel=3
        )
        return
    for entry in snapshot_entries(segments, tracks_segments):
        record_entry(ctypes.byref(entry))
