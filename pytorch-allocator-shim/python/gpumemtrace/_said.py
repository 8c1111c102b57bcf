"""What the program says of itself, handed to the library that was preloaded (interpose/src/said.rs).

Constraint: a script with these calls in it must run the same, at next to no cost, where gpumemtrace is not. Consequence: the functions
are looked for once, when this is imported, in what the process has loaded already; where they are not there, nothing is called.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import os
from types import TracebackType
from typing import Any, Callable, Optional, Type, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])


class NotRecording(RuntimeError):
    """There is no trace of this process."""


def _find(name: str, result: Any, *arguments: Any) -> Optional[Callable[..., Any]]:
    # Not CDLL, which would let go of the GIL around each call: these take a microsecond, and wait for nothing that needs it.
    function = getattr(ctypes.PyDLL(None), name, None)
    if function is not None:
        function.restype = result
        function.argtypes = arguments
    return cast("Optional[Callable[..., Any]]", function)


_step = _find("gpumemtrace_step", None)
_phase_begin = _find("gpumemtrace_phase_begin", None, ctypes.c_char_p)
_phase_end = _find("gpumemtrace_phase_end", None)
_trace = _find("gpumemtrace_trace", ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)


def step() -> None:
    """Says that a step begins. Reports then count these, and take no other sign for a step."""
    if _step is not None:
        _step()


class phase:
    """Gives a part of the run a name: ``with phase("evaluation"):``, or ``@phase("evaluation")`` above a function.

    Reports say what tensors held at most while it lasted, and what it left behind. Digits in the name are one name:
    "epoch 1" and "epoch 2" are two turns of "epoch #". Phases may lie in one another.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"the name of a phase is a str, not {type(name).__name__}")
        # The library takes a C string, which would end there.
        self._name = name.replace("\0", " ").encode("utf-8", "replace")

    def __enter__(self) -> phase:
        if _phase_begin is not None:
            _phase_begin(self._name)
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]
    ) -> None:
        if _phase_end is not None:
            _phase_end()

    def __call__(self, function: _Function) -> _Function:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            # It would be over before the first of the body is run, and others' work would lie in it if it were not.
            raise TypeError("a generator is no phase: put `with phase(...)` around the loop that takes from it")
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def run_async(*arguments: Any, **named: Any) -> Any:
                with self:
                    return await function(*arguments, **named)

            return cast(_Function, run_async)

        @functools.wraps(function)
        def run(*arguments: Any, **named: Any) -> Any:
            with self:
                return function(*arguments, **named)

        return cast(_Function, run)


def is_recording() -> bool:
    """Whether this process is being recorded at this moment: from its first GPU call on, under `gpumemtrace run`."""
    return _trace is not None and _trace(None, 0) > 0


def trace_path() -> str:
    """The file that this process is recorded into. Raises `NotRecording` where it is not."""
    length = _trace(None, 0) if _trace is not None else 0
    if _trace is None or length == 0:
        raise NotRecording(
            "this process is not being recorded: "
            + (
                "start it with `gpumemtrace run -- python ...`"
                if _step is None
                else "it has made no GPU call yet, is the child of a process that is recorded, or the recording has ended"
            )
        )
    buffer = ctypes.create_string_buffer(length + 1)
    _trace(buffer, length + 1)
    return os.fsdecode(buffer.value)
