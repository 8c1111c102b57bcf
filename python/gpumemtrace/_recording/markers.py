"""Steps, phases and marks, which the program writes into its trace.

A script with these calls must run unchanged, and at almost no cost, where gpumemtrace is not
present. So the library's functions are looked up once, at import, among the libraries that the
process has loaded, and again when `start()` loads one. Without a library, the markers do nothing.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import os
from types import TracebackType
from typing import Any, Callable, Generic, Iterable, Iterator, Optional, Type, TypeVar, cast

from . import mps_memory

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Item = TypeVar("_Item")


class NotRecording(RuntimeError):
    """This process is not being recorded, so it has no trace. The text says why."""


#: All globally loaded libraries, including a preloaded one; or the library that `start()` loaded.
_library = ctypes.PyDLL(None)
_step: Optional[Callable[[], None]] = None
_phase_begin: Optional[Callable[[bytes], None]] = None
_phase_end: Optional[Callable[[], None]] = None
_mark: Optional[Callable[[bytes], None]] = None
_trace: Optional[Callable[[Any, int], int]] = None
#: Set on macOS only. Every marker first samples PyTorch's memory on the Apple GPU.
_mps_memory: Optional[Callable[[Any], int]] = None


def find_function(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Any:
    """A function of a library, with these types; `None` if the library has no such function."""
    function = getattr(library, name, None)
    if function is not None:
        function.restype = result
        function.argtypes = arguments
    return function


def bind_library(library: ctypes.PyDLL) -> None:
    """Sends all markers to this library from now on.

    It must be a PyDLL. A CDLL releases the GIL around each call; these calls take at most a
    microsecond and never wait for another thread.
    """
    global _library, _step, _phase_begin, _phase_end, _mark, _trace, _mps_memory
    _library = library
    _step = find_function(library, "gpumemtrace_step", None)
    _phase_begin = find_function(library, "gpumemtrace_phase_begin", None, ctypes.c_char_p)
    _phase_end = find_function(library, "gpumemtrace_phase_end", None)
    _mark = find_function(library, "gpumemtrace_mark", None, ctypes.c_char_p)
    _trace = find_function(library, "gpumemtrace_trace", ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)
    _mps_memory = find_function(library, "gpumemtrace_mps_memory", ctypes.c_int, ctypes.c_void_p)


bind_library(_library)


def bound_library() -> ctypes.PyDLL:
    """The library that markers go to, if it has their functions."""
    return _library


def has_library() -> bool:
    """Whether the recording library is loaded into this process."""
    return _trace is not None


def step() -> None:
    """Marks the beginning of a training step.

    Once a program calls this, reports count these steps and ignore all other step boundaries.
    What comes before the first call is step 0.
    """
    if _mps_memory is not None:
        mps_memory.sample(_mps_memory)
    if _step is not None:
        _step()


class steps(Generic[_Item]):
    """``for batch in steps(loader):`` is one step per iteration.

    A step begins when its item is there: the time to fetch the item belongs to the step before.
    Has the length of `items`, and can be iterated as often.
    """

    __slots__ = ("_items",)

    def __init__(self, items: Iterable[_Item]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[_Item]:
        for item in self._items:
            step()
            yield item

    def __len__(self) -> int:
        return len(cast("list[_Item]", self._items))


def mark(name: str) -> None:
    """Names this moment, for the timeline and for `--at mark:NAME` and `--since mark:NAME`.

    A name may be used again: `mark:NAME` is its first use, `mark:NAME#3` the third. Unlike in names
    of phases, digits are kept. Raises `TypeError` if the name is not a str.
    """
    encoded = _encode_name(name, "mark")
    if _mps_memory is not None:
        mps_memory.sample(_mps_memory)
    if _mark is not None:
        _mark(encoded)


def _encode_name(name: str, kind: str) -> bytes:
    if not isinstance(name, str):
        raise TypeError(f"the name of a {kind} must be a str, not {type(name).__name__}")
    # The library takes a C string, which a NUL would end.
    return name.replace("\0", " ").encode("utf-8", "replace")


def wrap_function(context: Any, function: _Function, decorator: str) -> _Function:
    """The function, or coroutine function, with its body inside the context.

    Raises `TypeError` for a generator function.
    """
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        # The body runs after the call has returned, interleaved with its consumer.
        raise TypeError(f"@{decorator} cannot decorate a generator: put `with {decorator}(...)` around the loop that consumes it")
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
    """Names a part of the run: ``with phase("eval"):``, or ``@phase("eval")`` above a function.

    Reports show the peak of allocated memory during each phase, and the net change. Digits in the
    name are replaced by `#`, so "epoch 1" and "epoch 2" are two runs of the phase "epoch #". Phases
    nest. Raises `TypeError` if the name is not a str, or above a generator function.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = _encode_name(name, "phase")

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
        return wrap_function(self, function, "phase")


def is_recording() -> bool:
    """Whether this process is being recorded now.

    Under `gpumemtrace run`, and after `start()`, recording begins with the first GPU call.
    """
    return _trace is not None and _trace(None, 0) > 0


def trace_path() -> str:
    """The path of the trace of this process. Raises `NotRecording` if it is not being recorded."""
    length = _trace(None, 0) if _trace is not None else 0
    if _trace is None or length == 0:
        raise NotRecording(
            "this process is not being recorded: "
            + (
                "run it as `gpumemtrace run -- python ...`, or call gpumemtrace.start()"
                if _step is None
                else "it has made no GPU call yet, is a fork of a recorded process, or its recording has ended"
            )
        )
    buffer = ctypes.create_string_buffer(length + 1)
    _trace(buffer, length + 1)
    return os.fsdecode(buffer.value)
