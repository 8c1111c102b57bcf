"""When a scan runs: during the run, at exit, when memory runs out, and at a signal.

`gpumemtrace run --holders` calls `install()` in each Python process of the command, before any code
of the program and also in processes that never use a GPU. So it only registers handlers and imports
nothing of PyTorch; hooks into PyTorch are installed when the program imports it. The `atexit`
handler is registered first, so it runs last, when the program's own handlers are done and its
modules are still intact.
"""

import atexit
import os
import signal
import sys
from types import FrameType
from typing import Any, Optional

from .candidates import SOCKET_VARIABLE, CandidateReader
from .import_hook import ImportHook
from .intervals import IntervalScans, print_line
from .library import COMMAND_VARIABLE, read_with_command
from .returns import ReturnTrigger
from .scan import DEFAULT_LIMIT_S, forget_running_scan, scan_holders
from .search import library_folders
from .torch_objects import watch_saved_tensor_hooks

SIGNAL_VARIABLE = "GPUMEMTRACE_HOLDERS_SIGNAL"
LIMIT_VARIABLE = "GPUMEMTRACE_HOLDERS_LIMIT"
#: A program may try sizes until one fits; only its first failures are scanned.
_MAX_OOM_SCANS = 3

_limit_s = DEFAULT_LIMIT_S
_oom_count = 0
_intervals: Optional[IntervalScans] = None
_returns: Optional[ReturnTrigger] = None


def install() -> None:
    """Registers the triggers that the environment requests. Call it once per process."""
    global _limit_s
    if os.environ.get("GPUMEMTRACE_HOLDERS") != "1":
        return
    _limit_s = _read_limit()
    atexit.register(_on_exit)
    os.register_at_fork(after_in_child=_forget_threads)
    number = _read_signal()
    if number is not None and signal.getsignal(number) == signal.SIG_DFL:
        signal.signal(number, _on_signal)
    on_import = {"torch.autograd": _on_autograd_import, "torch.cuda": _on_cuda_import}
    sys.meta_path.insert(0, ImportHook(on_import))


def _read_limit() -> float:
    text = os.environ.get(LIMIT_VARIABLE, "")
    try:
        limit_s = float(text) if text else DEFAULT_LIMIT_S
        if 0 < limit_s <= 3600:
            return limit_s
    except ValueError:
        pass
    print_line(f"{LIMIT_VARIABLE}={text} is not a number of seconds up to 3600; using {DEFAULT_LIMIT_S:g}.")
    return DEFAULT_LIMIT_S


def _read_signal() -> Optional[int]:
    text = os.environ.get(SIGNAL_VARIABLE, "")
    if not text:
        return None
    name = text.upper() if text.upper().startswith("SIG") else "SIG" + text.upper()
    found = signal.Signals.__members__.get(name)
    if found is None or found in (signal.SIGKILL, signal.SIGSTOP):
        print_line(f"{SIGNAL_VARIABLE}={text} is not a signal that a program can handle; ignored.")
        return None
    return int(found)


def _scan_silently(when: str) -> None:
    """Scans and discards the result: it is in the trace, and so is the reason of a failure."""
    command = os.environ.get(COMMAND_VARIABLE)
    if not command:
        return
    try:
        scan_holders(when, read_with_command(command), _limit_s)
    except Exception:
        return


def _on_exit() -> None:
    for running in (_returns, _intervals):
        try:
            if running is not None:
                running.stop()
        except Exception as error:
            print_line(f"--holders: cannot end the scans during the run: {error!r}")
    _scan_silently("exit")


def _forget_threads() -> None:
    """In a forked child, there is no thread of ours. It starts another one with its first device."""
    global _intervals, _returns
    _intervals = _returns = None
    forget_running_scan()


def _start_intervals() -> None:
    """Called by PyTorch when the program first uses a device."""
    global _intervals, _returns
    path = os.environ.get(SOCKET_VARIABLE)
    if not path or _intervals is not None:
        return
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        # Without the GIL, no thread can read the variables of a running one.
        print_line("--holders: free-threaded Python: no scans during the run")
        return
    try:
        # The thread must not import anything: the program may hold the import lock.
        library_folders()
        _returns = ReturnTrigger(_on_return)
        _intervals = IntervalScans(CandidateReader(path), _limit_s, _returns.watch)
        _returns.watch()
    except Exception as error:
        print_line(f"--holders: no scans during the run: {error!r}")


def _on_return() -> None:
    if _intervals is not None:
        _intervals.scan_now()


def _on_signal(number: int, frame: Optional[FrameType]) -> None:
    _scan_silently("signal")


def _on_oom(device: int, requested: int, reserved: int, free: int) -> None:
    global _oom_count
    _oom_count += 1
    if _oom_count <= _MAX_OOM_SCANS:
        _scan_silently("oom")


def _on_autograd_import() -> None:
    # The program cannot have saved a tensor for the backward pass yet.
    watch_saved_tensor_hooks(sys.modules["torch"])


def _on_cuda_import() -> None:
    # Attaching now would initialize the device; _lazy_call defers it until the program does that.
    sys.modules["torch.cuda"]._lazy_call(_on_first_device)


def _on_first_device() -> None:
    _attach_oom_observer(sys.modules["torch"])
    _start_intervals()


def _attach_oom_observer(torch: Any) -> None:
    try:
        torch._C._cuda_attach_out_of_memory_observer(_on_oom)
    except Exception:
        # Pluggable allocators have no observers.
        return
