"""Finds and starts the command `gpumemtrace`.

Only the command reads traces. The package starts it as a process of its own, also for reports on
the running program: the command reads the trace, and its ring file, while they are written.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Iterator, List, Optional

_NAME = "gpumemtrace"


def find_command() -> str:
    """The path of the command installed with this package, or else the one on PATH.

    Raises `FileNotFoundError` if there is neither.
    """
    for candidate in _candidates():
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return str(candidate)
    found = shutil.which(_NAME)
    if found is None:
        raise FileNotFoundError("the gpumemtrace command was not found: neither in this Python's scripts nor on PATH")
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
    """Replaces this process with the command. `arguments` defaults to those of this process."""
    import sys

    command = find_command()
    # `gpumemtrace run train.py` and `run -m package` use this Python.
    os.environ["GPUMEMTRACE_PYTHON"] = sys.executable
    sys.stdout.flush()
    os.execv(command, [command, *(sys.argv[1:] if arguments is None else arguments)])
