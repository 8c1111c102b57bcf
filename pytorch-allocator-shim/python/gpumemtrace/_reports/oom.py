"""A report beside the trace when PyTorch runs out of GPU memory.

Constraint: the program's own error must reach it as it is, whatever becomes of the report. Consequence: the report is made while the
error passes by; nothing is caught, and what goes wrong with the report is one line on stderr.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import TracebackType
from typing import Any, Callable, Optional, Type, TypeVar, Union

from .._command import find_command
from .._platform import untraced
from .._recording import markers
from .report import report

_Function = TypeVar("_Function", bound=Callable[..., Any])

_said_why = False


class capture_oom:
    """``with capture_oom():``, or ``@capture_oom()`` above a function: where PyTorch runs out of GPU memory in it, the report on that
    (`gpumemtrace replay TRACE --oom`) is left beside the trace, as `run.oom.txt` and `run.oom.json`, and the error goes on.

    `path` is another name, without `.txt` and `.json`. A later report replaces an earlier one, which it includes. Where the process is not
    recorded there is no report; that is said on stderr at the first such error.
    """

    __slots__ = ("_path",)

    def __init__(self, path: Union[None, str, "os.PathLike[str]"] = None) -> None:
        self._path = None if path is None else os.fspath(path)

    def __enter__(self) -> capture_oom:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]
    ) -> None:
        if error is not None and _is_out_of_memory(error):
            try:
                _leave_report(self._path)
            except markers.NotRecording as why:
                _say_once(f"PyTorch ran out of GPU memory, and there is no report on it: {why}")
            except Exception as why:  # The error that passes is the one that counts.
                _say(f"the report on running out of GPU memory could not be made: {why}")

    def __call__(self, function: _Function) -> _Function:
        return markers.around(self, function, "capture_oom")


def _is_out_of_memory(error: BaseException) -> bool:
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    # The name without `cuda` is newer; both are one class where there are both.
    kinds = (getattr(torch, "OutOfMemoryError", None), getattr(torch.cuda, "OutOfMemoryError", None))
    return isinstance(error, tuple(kind for kind in kinds if isinstance(kind, type)))


def _leave_report(path: Optional[str]) -> None:
    trace = markers.trace_path()
    stem = os.path.splitext(trace)[0] + ".oom" if path is None else path
    as_text = [find_command(), "replay", trace, "--oom", "--color", "never", "--no-progress"]
    done = subprocess.run(as_text, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**untraced(os.environ), "COLUMNS": "120"})
    if not done.stdout:
        raise RuntimeError(done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}")
    _write(stem + ".txt", done.stdout)
    _write(stem + ".json", json.dumps(report(trace, "--oom"), indent=1).encode())
    _say(f"out of GPU memory; the report is in {stem}.txt")


def _write(path: str, content: bytes) -> None:
    # Whole or not at all: who watches for the file reads it at once.
    unfinished = f"{path}.{os.getpid()}"
    with open(unfinished, "wb") as file:
        file.write(content)
    os.replace(unfinished, path)


def _say_once(line: str) -> None:
    global _said_why
    if not _said_why:
        _said_why = True
        _say(line)


def _say(line: str) -> None:
    # A service may have closed it.
    if sys.stderr is not None:
        print(f"gpumemtrace: {line}", file=sys.stderr)
