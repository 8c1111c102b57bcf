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
from typing import Any, Callable, Dict, Optional, Sequence

from .library import COMMAND_VARIABLE
from .scan import DEFAULT_LIMIT_S, look
from .torch_objects import watch_hooks

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
    sys.meta_path.insert(0, _Finder({"torch.autograd": _watch, "torch.cuda": _be_told_of_oom}))


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


def _watch() -> None:
    """Before anything was saved for a backward pass."""
    watch_hooks(sys.modules["torch"])


def _be_told_of_oom() -> None:
    """To be told at once would initialise the device: when the program does that."""
    sys.modules["torch.cuda"]._lazy_call(lambda: _attach(sys.modules["torch"]))


def _attach(torch: Any) -> None:
    try:
        torch._C._cuda_attach_out_of_memory_observer(_at_oom)
    except Exception:
        # A pluggable allocator has none.
        return


class _Finder:
    """Waits for modules, and is gone when all have come."""

    def __init__(self, awaited: Dict[str, Callable[[], None]]) -> None:
        self._awaited = awaited

    def find_spec(self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None) -> Any:
        then = self._awaited.pop(name, None)
        if then is None:
            return None
        place = sys.meta_path.index(self) if self in sys.meta_path else -1
        others = sys.meta_path[place + 1 :]
        if not self._awaited and place >= 0:
            del sys.meta_path[place]
        for finder in others:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, then)  # type: ignore[assignment]
                return spec
        return None


class _Loader:
    """Loads a module as its own loader does, and says so."""

    def __init__(self, own: Any, then: Callable[[], None]) -> None:
        self._own, self._then = own, then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def create_module(self, spec: Any) -> Any:
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        module.__loader__ = self._own
        self._own.exec_module(module)
        try:
            self._then()
        except Exception:
            # Of another version of PyTorch. What is not known then is told so, or nobody is told of memory that runs out.
            return
