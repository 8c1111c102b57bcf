"""`profile()`: torch.profiler's trace and the GPU's memory in one file for Perfetto.

torch.profiler must work as without it. So its handlers run as before, and nothing here raises into
the program. PyTorch can export a trace only once. If the program does not export it, `profile()`
does, and gives the program's later export a copy.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import os
import shutil
import subprocess
import tempfile
import weakref
from types import TracebackType
from typing import Any, Callable, Optional, Type, Union

from .._command import find_command
from .._platform import untraced
from .._recording.markers import trace_path
from .._text import print_line

#: Exit codes that come with a file: success, incomplete trace (6).
_CODES_WITH_FILE = (0, 6)

_Path = Union[str, "os.PathLike[str]"]


class profile:
    """Writes what a `torch.profiler.profile` records and the GPU's memory into one Perfetto file.

    ::

        with torch.profiler.profile() as prof, gpumemtrace.profile(prof, "run.pftrace"):
            train()

    The file is written when the profiler has its trace: when it stops, or with a schedule at the
    end of each cycle, as `run.pftrace`, `run.2.pftrace` and so on. The profiler's own handler runs
    before that. Without an output, the file is beside the trace of this process.

    If the process is not being recorded, or anything fails, stderr says so in one line; the program
    goes on. Raises `TypeError` if `profiler` is not a `torch.profiler.profile`.
    """

    __slots__ = ("_cycle",)

    def __init__(self, profiler: Any, output: Optional[_Path] = None) -> None:
        if not hasattr(profiler, "on_trace_ready") or not hasattr(profiler, "export_chrome_trace"):
            raise TypeError(f"profile() takes a torch.profiler.profile, not {type(profiler).__name__}")
        self._cycle = _ProfiledCycles(profiler, None if output is None else os.fspath(output))

    def __enter__(self) -> profile:
        self._cycle.watch()
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]
    ) -> None:
        # The profiler may stop before or after this.
        pass


class _ProfiledCycles:
    """The traces of one profiler, and where they were exported."""

    def __init__(self, profiler: Any, output: Optional[str]) -> None:
        self._profiler = profiler
        self._output = output
        self._count = 0
        #: The file of the present trace.
        self._exported: Optional[str] = None
        self._folder: Optional[tempfile.TemporaryDirectory[str]] = None
        self._export: Callable[..., Any] = profiler.export_chrome_trace
        self._is_watching = False
        self._has_warned = False

    def watch(self) -> None:
        """Puts this before the profiler's handler and its export. A second call does nothing."""
        if self._is_watching:
            return
        self._is_watching = True
        handler = self._profiler.on_trace_ready

        def on_trace_ready(profiler: Any) -> None:
            self._exported = None
            if handler is not None:
                handler(profiler)
            try:
                self._merge()
            except Exception as why:  # The program must go on.
                self._warn_once(f"no merged profile was written: {why}")

        @functools.wraps(self._export)
        def export_chrome_trace(path: str, *arguments: Any, **named: Any) -> Any:
            if self._exported is not None and not arguments and not named and os.path.exists(self._exported):
                return _copy(self._exported, path)
            result = self._export(path, *arguments, **named)
            self._exported = os.path.abspath(path)
            return result

        self._profiler.on_trace_ready = on_trace_ready
        self._profiler.export_chrome_trace = export_chrome_trace

    def _merge(self) -> None:
        trace = trace_path()
        self._count += 1
        stem, extension = os.path.splitext(self._output or os.path.splitext(trace)[0] + ".pftrace")
        output = stem + (f".{self._count}" if self._count > 1 else "") + extension
        if self._exported is None:
            self._profiler.export_chrome_trace(self._own_file())
        assert self._exported is not None
        command = [find_command(), "export", "perfetto", trace, "--torch-profile", self._exported, "--output", output, "--no-progress"]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=untraced(os.environ))
        if done.returncode not in _CODES_WITH_FILE:
            raise RuntimeError(done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}")
        print_line(f"profile and GPU memory written to {output}")

    def _warn_once(self, line: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            with contextlib.suppress(Exception):  # The program may have closed stderr.
                print_line(line)

    def _own_file(self) -> str:
        """A file for the present trace, which is removed with the profiler."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="gpumemtrace-")
            weakref.finalize(self._profiler, self._folder.cleanup)
        return os.path.join(self._folder.name, "profile.json")


def _copy(source: str, target: _Path) -> None:
    """Copies a trace as PyTorch writes it: compressed if the name ends in .gz."""
    target = os.fspath(target)
    if os.path.abspath(target) == source:
        return
    opener = gzip.open if source.endswith(".gz") else open
    closer = gzip.open if target.endswith(".gz") else open
    with opener(source, "rb") as read, closer(target, "wb") as written:
        shutil.copyfileobj(read, written)
