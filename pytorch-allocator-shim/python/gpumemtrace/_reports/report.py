"""Reports on a trace, made by the command."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any, Dict, Union

from .._command import find_command
from .._platform import untraced
from .._recording.markers import trace_path

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
