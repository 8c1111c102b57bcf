"""The command `gpumemtrace`, and the reports it makes.

Constraint: the reader of traces is the command, in a process of its own. Consequence: what a program asks about itself is asked of the
command too, which reads the trace, and the ring beside it, while they are being written.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Union

from ._said import trace_path
from ._system import untraced

_NAME = "gpumemtrace"
#: The report was made: 3 says that there are findings, 6 that some of the trace is missing, which the report says too.
_WITH_REPORT = (0, 3, 6)


class CommandFailed(RuntimeError):
    """The command could not make a report; the text is what it said. `code` is its exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def report(path: Union[None, str, "os.PathLike[str]"] = None, *options: str) -> Dict[str, Any]:
    """The report on a trace, as `gpumemtrace replay PATH --json OPTIONS` makes it; without a path, on this process so far.

    The keys are those of docs/report.schema.json. Raises `NotRecording` where no path is given and this process is not recorded,
    `CommandFailed` where the trace cannot be read or an option is wrong.
    """
    trace = trace_path() if path is None else os.fspath(path)
    done = subprocess.run(
        [find_command(), "replay", trace, "--json", "--no-progress", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=untraced(os.environ),
    )
    if done.returncode not in _WITH_REPORT:
        raise CommandFailed(done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}", done.returncode)
    return dict(json.loads(done.stdout))


def leaks(path: Union[None, str, "os.PathLike[str]"] = None, *options: str) -> Dict[str, Any]:
    """The report with its analysis of leaks: `report(path, "--leaks")`. Findings are in its `leaks`, worst first."""
    return report(path, "--leaks", *options)


def find_command() -> str:
    """The command that was installed with this package, else the one on PATH."""
    for candidate in _candidates():
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return str(candidate)
    found = shutil.which(_NAME)
    if found is None:
        raise FileNotFoundError("the command gpumemtrace is neither among the scripts of this Python nor on PATH")
    return found


def _candidates() -> Iterator[Path]:
    try:
        files = distribution(_NAME).files or []
    except PackageNotFoundError:
        files = []
    for file in files:
        if file.name == _NAME and file.parent.name == "bin":
            yield Path(str(file.locate())).resolve()
    # `pip install --target` puts scripts beside packages.
    yield Path(__file__).resolve().parent.parent / "bin" / _NAME
    yield Path(sysconfig.get_path("scripts")) / _NAME


def main(arguments: Optional[List[str]] = None) -> None:
    """Becomes the command, with these arguments."""
    import sys

    command = find_command()
    # For `run train.py` and `run -m package`.
    os.environ["GPUMEMTRACE_PYTHON"] = sys.executable
    sys.stdout.flush()
    os.execv(command, [command, *(sys.argv[1:] if arguments is None else arguments)])
