"""`capture_oom()`: a report beside the trace when PyTorch runs out of GPU memory.

PyTorch's error must reach the program unchanged. The report is made while the error propagates;
nothing is caught, and a failure of the report is one line on stderr.
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
from .._recording.markers import NotRecording, trace_path, wrap_function
from .._text import print_line
from .output_file import free_stem, write_file
from .report import report

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: The kind of the two files of a report.
_KIND = "oom-report"

_has_warned = False


class capture_oom:
    """Writes an out-of-memory report when `torch.OutOfMemoryError` leaves the context.

    Use ``with capture_oom():``, or ``@capture_oom()`` above a function. The report is that of
    `gpumemtrace replay TRACE --oom`, as `run.oom.txt` and `run.oom.json` beside the trace; `path`
    names the two files otherwise, without extension. A later report includes and replaces the
    earlier ones; next to files that gpumemtrace did not write, it gets a number (`run.oom.1.txt`).
    The error propagates in any case.

    If the process is not being recorded, there is no report; stderr says so at the first error.
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
                _write_report(self._path)
            except NotRecording as why:
                _warn_once(f"out of GPU memory, but no report was written: {why}")
            except Exception as why:  # The program's own error must not be replaced.
                print_line(f"out of GPU memory, but the report failed: {why}")

    def __call__(self, function: _Function) -> _Function:
        return wrap_function(self, function, "capture_oom")


def _is_out_of_memory(error: BaseException) -> bool:
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    # torch.cuda.OutOfMemoryError is the older name. A torch with both has one class.
    kinds = (getattr(torch, "OutOfMemoryError", None), getattr(torch.cuda, "OutOfMemoryError", None))
    return isinstance(error, tuple(kind for kind in kinds if isinstance(kind, type)))


def _write_report(path: Optional[str]) -> None:
    trace = trace_path()
    stem = os.path.splitext(trace)[0] + ".oom" if path is None else path
    command = [find_command(), "replay", trace, "--oom", "--color", "never", "--no-progress"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**untraced(os.environ), "COLUMNS": "120"})
    if not done.stdout:
        raise RuntimeError(done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}")
    # An error is the wrong moment to refuse. Beside a user's own file, the report gets a number.
    stem = free_stem(stem, _KIND, ".txt", ".json")
    write_file(stem + ".txt", _KIND, done.stdout)
    write_file(stem + ".json", _KIND, json.dumps(report(trace, "--oom"), indent=1).encode())
    print_line(f"out of GPU memory: report written to {stem}.txt")


def _warn_once(line: str) -> None:
    global _has_warned
    if not _has_warned:
        _has_warned = True
        print_line(line)
