"""`html()`: an offline page with charts, which a notebook shows in the output of a cell."""

from __future__ import annotations

import html as _html
import os
import subprocess
from typing import Union

from .._command import find_command
from .._platform import untraced
from .._recording.markers import trace_path
from .report import CommandFailed

#: Exit codes that come with a page: success, incomplete trace (6).
_CODES_WITH_PAGE = (0, 6)

#: Height of the page in a notebook, in pixels.
_HEIGHT = 800


class Page:
    """A page that `html()` wrote. `path` is its file; a notebook shows the page itself."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"Page({self.path!r})"

    def _repr_html_(self) -> str:
        with open(self.path, encoding="utf-8") as file:
            page = _html.escape(file.read(), quote=True)
        return (
            f'<iframe srcdoc="{page}" width="100%" height="{_HEIGHT}" title="GPU memory of the run" '
            'sandbox="allow-scripts allow-downloads" style="border: 0"></iframe>'
        )


def html(
    path: Union[None, str, "os.PathLike[str]"] = None,
    output: Union[None, str, "os.PathLike[str]"] = None,
    *options: str,
) -> Page:
    """Writes the page of `gpumemtrace html PATH --output OUTPUT OPTIONS` and returns it.

    Without a path, it covers this process so far; without an output, the page is beside the trace.
    Starts a process that replays the whole trace.

    Raises `NotRecording` if no path is given and this process is not being recorded, and
    `CommandFailed` if the trace cannot be read, the page cannot be written or an option is wrong.
    """
    trace = os.fspath(path) if path is not None else trace_path()
    page = os.path.splitext(trace)[0] + ".html" if output is None else os.fspath(output)
    done = subprocess.run(
        [find_command(), "html", trace, "--output", page, "--no-progress", *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=untraced(os.environ),
    )
    if done.returncode not in _CODES_WITH_PAGE:
        raise CommandFailed(done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}", done.returncode)
    return Page(page)
