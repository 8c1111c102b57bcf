"""The command `gpumemtrace`, and the reports it makes.

Constraint: the reader of traces is the command, in a process of its own. Consequence: what a program asks about itself is asked of the
command too, which reads the trace, and the ring beside it, while they are being written.
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
