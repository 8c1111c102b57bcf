"""What the program says of itself, handed to the library that records it (interpose/src/said.rs).

Constraint: a script with these calls in it must run the same, at next to no cost, where gpumemtrace is not. Consequence: the functions
are looked for when this is imported, in what the process has loaded already, and once more when it starts a recording itself;
where they are not there, nothing is called.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import os
from types import TracebackType
from typing import Any, Callable, Optional, Type, TypeVar, cast

from . import mps_memory

_Function = TypeVar("_Function", bound=Callable[..., Any])


class NotRecording(RuntimeError):
    """There is no trace of this process."""


#: All that the process has loaded for everybody, which a preloaded library is; or the one that `start()` has loaded.
_library = ctypes.PyDLL(None)
_step: Optional[Callable[[], None]] = None
_phase_begin: Optional[Callable[[bytes], None]] = None
_phase_end: Optional[Callable[[], None]] = None
_mark: Optional[Callable[[bytes], None]] = None
_trace: Optional[Callable[[Any, int], int]] = None
#: What PyTorch holds on an Apple GPU at the end of what has been so far is told with each of the above.
_mps_memory: Optional[Callable[[Any], int]] = None


def find(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Any:
    """A function of a library; `None` where it has none of this name."""
    function = getattr(library, name, None)
    if function is not None:
        function.restype = result
        function.argtypes = arguments
    return function


def _find(name: str, result: Any, *arguments: Any) -> Any:
    """A function of the library that records this process, as far as one is loaded; `None` where there is none."""
    return find(_library, name, result, *arguments)


def bind(library: ctypes.PyDLL) -> None:
    """From now on what the program says goes there. Not to a CDLL, which would let go of the GIL around each call: these take a
    microsecond, and wait for nothing that needs it."""
    global _library, _step, _phase_begin, _phase_end, _mark, _trace, _mps_memory
    _library = library
    _step = find(library, "gpumemtrace_step", None)
    _phase_begin = find(library, "gpumemtrace_phase_begin", None, ctypes.c_char_p)
    _phase_end = find(library, "gpumemtrace_phase_end", None)
    _mark = find(library, "gpumemtrace_mark", None, ctypes.c_char_p)
    _trace = find(library, "gpumemtrace_trace", ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)
    _mps_memory = find(library, "gpumemtrace_mps_memory", ctypes.c_int, ctypes.c_void_p)


bind(_library)


def library() -> ctypes.PyDLL:
    """Where what the program says goes, if anywhere."""
    return _library


def step() -> None:
    """Says that a step begins. Reports then count these, and take no other sign for a step."""
    if _mps_memory is not None:
        mps_memory.sample(_mps_memory)
    if _step is not None:
        _step()


def mark(name: str) -> None:
    """Gives this moment a name: the timeline shows it, and `--at mark:NAME` and `--since mark:NAME` ask for it.

    Of several of one name `mark:NAME` is the first and `mark:NAME#3` the third. Unlike in a phase's, numbers in it are kept.
    """
    encoded = _encoded(name, "mark")
    if _mps_memory is not None:
        mps_memory.sample(_mps_memory)
    if _mark is not None:
        _mark(encoded)


def _encoded(name: str, what: str) -> bytes:
    if not isinstance(name, str):
        raise TypeError(f"the name of a {what} is a str, not {type(name).__name__}")
    # The library takes a C string, which would end there.
    return name.replace("\0", " ").encode("utf-8", "replace")


def around(context: Any, function: _Function, what: str) -> _Function:
    """A function, or a coroutine function, whose body runs inside of a context."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        # It would be over before the first of the body is run, and others' work would lie in it if it were not.
        raise TypeError(f"a generator is no {what}: put `with {what}(...)` around the loop that takes from it")
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run_async(*arguments: Any, **named: Any) -> Any:
            with context:
                return await function(*arguments, **named)

        return cast(_Function, run_async)

    @functools.wraps(function)
    def run(*arguments: Any, **named: Any) -> Any:
        with context:
            return function(*arguments, **named)

    return cast(_Function, run)


class phase:
    """Gives a part of the run a name: ``with phase("evaluation"):``, or ``@phase("evaluation")`` above a function.

    Reports say what tensors held at most while it lasted, and what it left behind. Digits in the name are one name:
    "epoch 1" and "epoch 2" are two turns of "epoch #". Phases may lie in one another.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = _encoded(name, "phase")

    def __enter__(self) -> phase:
        if _mps_memory is not None:
            mps_memory.sample(_mps_memory)
        if _phase_begin is not None:
            _phase_begin(self._name)
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]
    ) -> None:
        if _mps_memory is not None:
            mps_memory.sample(_mps_memory)
        if _phase_end is not None:
            _phase_end()

    def __call__(self, function: _Function) -> _Function:
        return around(self, function, "phase")


def is_recording() -> bool:
    """Whether this process is being recorded at this moment: from its first GPU call on, under `gpumemtrace run` or after `start()`."""
    return _trace is not None and _trace(None, 0) > 0


def trace_path() -> str:
    """The file that this process is recorded into. Raises `NotRecording` where it is not."""
    length = _trace(None, 0) if _trace is not None else 0
    if _trace is None or length == 0:
        raise NotRecording(
            "this process is not being recorded: "
            + (
                "start it with `gpumemtrace run -- python ...`, or call gpumemtrace.start()"
                if _step is None
                else "it has made no GPU call yet, is the child of a process that is recorded, or the recording has ended"
            )
        )
    buffer = ctypes.create_string_buffer(length + 1)
    _trace(buffer, length + 1)
    return os.fsdecode(buffer.value)
