"""`report()` and `leaks()`: the command's JSON report as a dict."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any, Dict, Union

from .._command import find_command
from .._platform import untraced
from .._recording.markers import trace_path

#: Exit codes that come with a report: success, findings (3), incomplete trace (6).
_CODES_WITH_REPORT = (0, 3, 6)


class CommandFailed(RuntimeError):
    """The command made no report. The text is its error message, `code` its exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def report(path: Union[None, str, "os.PathLike[str]"] = None, *options: str) -> Dict[str, Any]:
    """The report of `gpumemtrace replay PATH --json OPTIONS`.

    Without a path, it covers this process so far. `gpumemtrace schema report` describes the keys.
    Starts a process that replays the whole trace. A folder or pattern has at most 16 traces.

    Raises `NotRecording` if no path is given and this process is not being recorded, and
    `CommandFailed` if the trace cannot be read or an option is wrong.
    """
    trace = trace_path() if path is None else os.fspath(path)
    done = subprocess.run(
        [find_command(), "replay", trace, "--json", "--no-progress", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=untraced(os.environ),
    )
    if done.returncode not in _CODES_WITH_REPORT:
        raise CommandFailed(done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}", done.returncode)
    return dict(json.loads(done.stdout))


def leaks(path: Union[None, str, "os.PathLike[str]"] = None, *options: str) -> Dict[str, Any]:
    """`report(path, "--leaks", *options)`. The likely leaks are in `["leaks"]`, worst first."""
    return report(path, "--leaks", *options)
