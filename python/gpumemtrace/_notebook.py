"""The cell magic: `%load_ext gpumemtrace`, then `%%gpumemtrace` as the first line of a cell.

The magic reports what a cell allocated from the trace alone. A notebook is usually not started
under `gpumemtrace run`, so the first such cell starts the recording. Each cell is a phase between
two marks; the text printed after it is the report on the time between them. IPython calls this
module and is not a dependency of the package.
"""

from __future__ import annotations

import linecache
import re
from typing import Any, Dict, List, Optional, Tuple

from ._recording.lifecycle import is_started, start
from ._recording.markers import NotRecording, is_recording, mark, phase
from ._reports.report import CommandFailed, report
from ._reports.sites import format_site, grown_sites
from ._reports.sizes import format_size
from ._text import printable

#: Call sites printed per list.
_MAX_SITES = 5

#: File names that ipykernel, IPython and Colab give to the code of cells.
_CELL_FILE = re.compile(r"ipykernel_\d+/\d+\.py$|\bipython-input-")

#: IPython's and Colab's count of executions in such a name. Reports leave it out: a cell that runs
#: again is the same code.
_EXECUTION_COUNT = re.compile(r"(?<=ipython-input-)\d+-")

_cell_count = 0


def load_ipython_extension(shell: Any) -> None:
    """Registers the cell magic; IPython calls this for `%load_ext gpumemtrace`."""

    def gpumemtrace(line: str, cell: str) -> None:
        """%%gpumemtrace: print the peak GPU memory of the cell, and what it retains.

        `%%gpumemtrace FILE` names the trace, if this starts the recording."""
        __tracebackhide__ = True  # IPython leaves the frame out of a cell's traceback.
        _run_cell(shell, line, cell)

    shell.register_magic_function(gpumemtrace, magic_kind="cell", magic_name="gpumemtrace")


def _run_cell(shell: Any, line: str, cell: str) -> None:
    global _cell_count
    __tracebackhide__ = True
    _cell_count += 1
    begin, end, cell_file = f"cell {_cell_count} begins", f"cell {_cell_count} ends", _cell_file_name(shell, cell)
    output, problem = line.strip() or None, ""
    try:
        if output is not None and is_started():
            print("gpumemtrace: already recording; the trace keeps its name")
        start(output)
    except (RuntimeError, OSError) as error:
        problem = str(error)
    if problem:
        print(f"gpumemtrace: {printable(problem)}")
        result = _run_code(shell, cell)
    else:
        result = _run_and_report(shell, cell, (begin, end), cell_file)
    result.raise_error()


def _run_and_report(shell: Any, cell: str, marks: Tuple[str, str], cell_file: Optional[str]) -> Any:
    begin, end = marks
    mark(begin)
    try:
        with phase("cell"):
            return _run_code(shell, cell)
    finally:
        mark(end)
        print(_cell_report(begin, end, cell_file))


def _run_code(shell: Any, cell: str) -> Any:
    """Runs the cell's code without printing its error.

    The magic raises the error, so that the cell fails, as under `%%time`; IPython prints it then.
    """
    shell._showtraceback = lambda *error: None
    try:
        return shell.run_cell(cell)
    finally:
        del shell._showtraceback


def _cell_file_name(shell: Any, cell: str) -> Optional[str]:
    """The file name that reports have for the code of a cell that IPython is going to run."""
    try:
        return _reported_name(str(shell.compile.get_code_name(cell, shell.transform_cell(cell), shell.execution_count)))
    except Exception:  # Another version of IPython: its lines are shown as those of "another cell".
        return None


def _cell_report(begin: str, end: str, cell_file: Optional[str]) -> str:
    if not is_recording():
        return "gpumemtrace: no GPU call so far"
    options = ("--peak", "--since", f"mark:{begin}", "--at", f"mark:{begin}", "--at", f"mark:{end}")
    try:
        whole = report(None, *options)
    except (CommandFailed, NotRecording, FileNotFoundError) as error:
        return f"gpumemtrace: no report on this cell: {printable(str(error))}"
    snapshots: Dict[Tuple[str, int], Dict[str, Any]] = {
        (snapshot["when"], snapshot["device"]): snapshot for snapshot in whole.get("snapshots", [])
    }
    lines: List[str] = []
    for peak in whole.get("peak", []):
        device = peak["device"]
        before, after = snapshots.get((f"mark:{begin}", device)), snapshots.get((f"mark:{end}", device))
        lines += _device_lines(peak, before, after, cell_file)
    if not lines:
        lines = ["gpumemtrace: this cell used no GPU memory"]
    for trace in whole["traces"]:
        if not trace["complete"]:
            lines.append(f"  The trace is incomplete; `gpumemtrace info {trace['path']}` shows what is missing.")
    return "\n".join(map(printable, lines))


def _device_lines(
    peak: Dict[str, Any], before: Optional[Dict[str, Any]], after: Optional[Dict[str, Any]], cell_file: Optional[str]
) -> List[str]:
    layer = peak["layer"]
    kind = "allocated" if layer == "torch" else "driver memory (PyTorch's own allocator was not seen)"
    # A device that is first used in this cell held nothing before.
    at_begin, at_end = _live_bytes(before, layer, 0), _live_bytes(after, layer, None)
    change = ""
    if at_end is not None and at_begin is not None:
        sign = "+" if at_end >= at_begin else "-"
        change = f" ({sign}{_size_text(abs(at_end - at_begin))})"
    lines = [
        f"GPU {peak['device']}, this cell: peak {kind} {_size_text(peak['live_bytes'])}; "
        f"at start {_size_text(at_begin)}, at end {_size_text(at_end)}{change}"
    ]
    lines += _site_lines("allocated at the peak", [(site["bytes"], site["site"]) for site in peak["sites"]], cell_file)
    return lines + _site_lines("retained after the cell", grown_sites(before, after), cell_file)


def _live_bytes(snapshot: Optional[Dict[str, Any]], layer: str, default: Optional[int]) -> Optional[int]:
    if snapshot is None:
        return default
    value: Optional[int] = snapshot["live_bytes" if layer == "torch" else "device_bytes"]
    # Null if PyTorch had not allocated anything by then.
    return 0 if value is None and layer == "torch" else value


def _site_lines(title: str, rows: List[Tuple[int, Dict[str, Any]]], cell_file: Optional[str]) -> List[str]:
    if not rows:
        return []
    lines = [f"  {title}:"] + [f"    {_size_text(size):>12}  {_site_text(site, cell_file)}" for size, site in rows[:_MAX_SITES]]
    if len(rows) > _MAX_SITES:
        rest = sum(size for size, _ in rows[_MAX_SITES:])
        lines.append(f"    {_size_text(rest):>12}  {len(rows) - _MAX_SITES} more lines")
    return lines


def _site_text(site: Dict[str, Any], cell_file: Optional[str]) -> str:
    file, line = site.get("file"), site.get("line")
    if file is not None and (file == cell_file or _CELL_FILE.search(file)):
        text = _cell_line(file, line) if line is not None else ""
        cell = "this cell" if file == cell_file else "another cell"
        backward = " (backward)" if site.get("is_backward") else ""
        return f"{cell}, line {'?' if line is None else line}{backward}" + (f": {text}" if text else "")
    return format_site(site)


def _reported_name(file: str) -> str:
    return _EXECUTION_COUNT.sub("", file)


def _cell_line(file: str, line: int) -> str:
    """A line of a cell. IPython registers the code of cells with linecache."""
    registered = (name for name in reversed(list(linecache.cache)) if _reported_name(name) == file)
    return linecache.getline(next(registered, file), line).strip()


def _size_text(size: Optional[int]) -> str:
    return "unknown" if size is None else format_size(size)
