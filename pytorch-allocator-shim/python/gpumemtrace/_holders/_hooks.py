"""When to look: at the end, when memory runs out, at a signal. What `gpumemtrace run --holders` starts in each Python of the command.

Constraint: this runs before anything of the program, in processes that may never touch a GPU. Consequence: it registers, and imports
nothing of PyTorch; what depends on that waits until the program has imported it. The first to be registered is called last at exit,
when the program's own handlers are done and its modules are still whole.
"""

import atexit
import os
import signal
import sys
from types import FrameType, ModuleType
from typing import Any, Optional, Sequence

from ._library import COMMAND_VARIABLE
from ._look import DEFAULT_LIMIT_S, look
from ._torch import watch_hooks

ASKED_VARIABLE = "GPUMEMTRACE_HOLDERS"
SIGNAL_VARIABLE = "GPUMEMTRACE_HOLDERS_SIGNAL"
LIMIT_VARIABLE = "GPUMEMTRACE_HOLDERS_LIMIT"
#: Of a program that tries sizes until one fits, only the first failures are looked at.
_MOST_OOMS = 3

_limit_s = DEFAULT_LIMIT_S
_ooms = 0


def install() -> None:
    """Registers what is asked for in the environment. Once in a process."""
    global _limit_s
    _limit_s = _limit()
    atexit.register(_quietly, "exit")
    number = _signal()
    if number is not None and signal.getsignal(number) == signal.SIG_DFL:
        signal.signal(number, _at_signal)
    if "torch.cuda" in sys.modules:
        _torch_is_there(sys.modules["torch"])
    else:
        sys.meta_path.insert(0, _Finder())


def _limit() -> float:
    text = os.environ.get(LIMIT_VARIABLE, "")
    try:
        limit_s = float(text) if text else DEFAULT_LIMIT_S
        if 0 < limit_s <= 3600:
            return limit_s
    except ValueError:
        pass
    _say(f"{LIMIT_VARIABLE}={text} is no number of seconds up to 3600; using {DEFAULT_LIMIT_S:g}.")
    return DEFAULT_LIMIT_S


def _signal() -> Optional[int]:
    text = os.environ.get(SIGNAL_VARIABLE, "")
    if not text:
        return None
    name = text.upper() if text.upper().startswith("SIG") else "SIG" + text.upper()
    found = signal.Signals.__members__.get(name)
    if found is None or found in (signal.SIGKILL, signal.SIGSTOP):
        _say(f"{SIGNAL_VARIABLE}={text} is no signal that can be waited for; going on without it.")
        return None
    return int(found)


def _say(text: str) -> None:
    sys.stderr.write(f"gpumemtrace: {text}\n")


def _quietly(when: str) -> None:
    """A look that nobody waits for: what fails is the trace's to tell, and never the program's."""
    command = os.environ.get(COMMAND_VARIABLE)
    if not command:
        return
    try:
        look(when, command, _limit_s)
    except Exception:
        return


def _at_signal(number: int, frame: Optional[FrameType]) -> None:
    _quietly("signal")


def _at_oom(device: int, requested: int, reserved: int, free: int) -> None:
    global _ooms
    _ooms += 1
    if _ooms <= _MOST_OOMS:
        _quietly("oom")


def _torch_is_there(torch: Any) -> None:
    """PyTorch has been imported, and has not been used."""
    try:
        watch_hooks(torch)
    except Exception:
        # Then what graphs have saved is not read, and that is told.
        pass
    try:
        # To be told of it would initialise the device: later, when the program does.
        torch.cuda._lazy_call(lambda: _attach(torch))
    except Exception:
        return


def _attach(torch: Any) -> None:
    try:
        torch._C._cuda_attach_out_of_memory_observer(_at_oom)
    except Exception:
        # A pluggable allocator has none.
        return


class _Finder:
    """Waits for `torch.cuda`, and is gone when it has come."""

    def find_spec(self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None) -> Any:
        if name != "torch.cuda" or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
                return spec
        return None


class _Loader:
    """Loads a module as its own loader does, and says so."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def create_module(self, spec: Any) -> Any:
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        module.__loader__ = self._own
        self._own.exec_module(module)
        torch = sys.modules.get("torch")
        if torch is not None:
            _torch_is_there(_Early(torch, module))


class _Early:
    """PyTorch while it is being imported: its part for CUDA is whole, and not yet its attribute."""

    def __init__(self, torch: Any, cuda: ModuleType) -> None:
        self._C, self.cuda = torch._C, cuda
