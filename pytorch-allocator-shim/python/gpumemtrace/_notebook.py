"""The cell magic: `%load_ext gpumemtrace`, then `%%gpumemtrace` as the first line of a cell.

Constraint: what a cell held is known from the trace alone, and a notebook may have been started without us. Consequence: the first
such cell starts the recording, where nobody has; the cell lies between two marks, and what is printed after it is the report of
what lies between these. IPython is no dependency of this package: it is there where this is called.
"""

from __future__ import annotations

import linecache
import re
from typing import Any, Dict, List, Optional, Tuple

from ._recording import markers
from ._recording.lifecycle import is_started, start
from ._reports import sizes
from ._reports.report import CommandFailed, report

#: Lines that are printed of each list.
_MOST_LINES = 5

_CELL = re.compile(r"ipykernel_\d+/\d+\.py$|^<ipython-input-\d+-")

_cells = 0


def load_ipython_extension(shell: Any) -> None:
    """For IPython's `%load_ext gpumemtrace`."""

    def gpumemtrace(line: str, cell: str) -> None:
        """%%gpumemtrace: what the cell held of GPU memory at most, and what it left behind. `%%gpumemtrace FILE` names the trace, where
        this starts the recording."""
        _run(shell, line, cell)

    shell.register_magic_function(gpumemtrace, magic_kind="cell", magic_name="gpumemtrace")


def _run(shell: Any, line: str, cell: str) -> None:
    global _cells
    _cells += 1
    begin, end, own = f"cell {_cells} begins", f"cell {_cells} ends", _name_of(shell, cell)
    wanted = line.strip() or None
    try:
        if wanted is not None and is_started():
            print("gpumemtrace: the recording was started before, and its trace keeps its name")
        start(wanted)
    except (RuntimeError, OSError) as error:
        print(f"gpumemtrace: {error}")
        shell.run_cell(cell)
        return
    markers.mark(begin)
    try:
        with markers.phase("cell"):
            # It shows the cell's own errors, and returns.
            shell.run_cell(cell)
    finally:
        markers.mark(end)
    print(_told(begin, end, own))


def _name_of(shell: Any, cell: str) -> Optional[str]:
    """The name that IPython is going to give to the text of a cell."""
    try:
        return str(shell.compile.get_code_name(cell, shell.transform_cell(cell), shell.execution_count))
    except Exception:  # Of a version that does not tell: then it is one cell among others.
        return None


def _told(begin: str, end: str, own: Optional[str]) -> str:
    if not markers.is_recording():
        return "gpumemtrace: the cell made no GPU call, nor did any before it"
    asked = ("--peak", "--since", f"mark:{begin}", "--at", f"mark:{begin}", "--at", f"mark:{end}")
    try:
        whole = report(None, *asked)
    except (CommandFailed, markers.NotRecording, FileNotFoundError) as error:
        return f"gpumemtrace: what the cell held is not known: {error}"
    at: Dict[Tuple[str, int], Dict[str, Any]] = {
        (instant["asked"], instant["device"]): instant for instant in whole.get("instants", [])
    }
    lines: List[str] = []
    for peak in whole.get("peak", []):
        device = peak["device"]
        lines += _device(peak, at.get((f"mark:{begin}", device)), at.get((f"mark:{end}", device)), own)
    if not lines:
        lines = ["gpumemtrace: the cell held no GPU memory"]
    for trace in whole["traces"]:
        if not trace["complete"]:
            lines.append(f"  something is missing in the trace: `gpumemtrace info {trace['path']}` says what")
    return "\n".join(lines)


def _device(
    peak: Dict[str, Any], before: Optional[Dict[str, Any]], after: Optional[Dict[str, Any]], own: Optional[str]
) -> List[str]:
    layer = peak["layer"]
    what = "tensors" if layer == "torch" else "memory of the driver (PyTorch's own allocator was not seen)"
    # A device that is met in this cell has held nothing before it.
    then, now = _held(before, layer, 0), _held(after, layer, None)
    left = "an unknown amount left behind"
    if now is not None and then is not None:
        left = f"{_size(now - then)} left behind" if now >= then else f"{_size(then - now)} less after it"
    lines = [
        f"GPU memory of this cell, device {peak['device']}: at most {_size(peak['live_bytes'])} of {what}, "
        f"{_size(then)} before it, {left}"
    ]
    lines += _rows("at the peak", [(site["bytes"], site["site"]) for site in peak["sites"]], own)
    held: Dict[str, int] = {site["site"]["id"]: site["bytes"] for site in (before or {}).get("sites", [])}
    sites = (after or {}).get("sites", [])
    more = [(site["bytes"] - held.get(site["site"]["id"], 0), site["site"]) for site in sites]
    return lines + _rows("left behind", sorted((row for row in more if row[0] > 0), key=lambda row: -row[0]), own)


def _held(instant: Optional[Dict[str, Any]], layer: str, unknown: Optional[int]) -> Optional[int]:
    if instant is None:
        return unknown
    value: Optional[int] = instant["live_bytes" if layer == "torch" else "device_bytes"]
    # Where PyTorch had handed out nothing by then.
    return 0 if value is None and layer == "torch" else value


def _rows(title: str, rows: List[Tuple[int, Dict[str, Any]]], own: Optional[str]) -> List[str]:
    if not rows:
        return []
    shown = [f"  {title}:"] + [f"    {_size(size):>12}  {_place(site, own)}" for size, site in rows[:_MOST_LINES]]
    if len(rows) > _MOST_LINES:
        rest = sum(size for size, _ in rows[_MOST_LINES:])
        shown.append(f"    {_size(rest):>12}  {len(rows) - _MOST_LINES} more lines")
    return shown


def _place(site: Dict[str, Any], own: Optional[str]) -> str:
    file, line, function = site.get("file"), site.get("line"), site.get("function")
    if file is None:
        return str(site.get("module") or "(no Python stack)")
    backward = ", its backward" if site.get("backward") else ""
    # ipykernel and IPython have names of their own for the texts of cells, and keep these as if they were files.
    if file == own or _CELL.search(file):
        text = linecache.getline(file, line).strip() if line is not None else ""
        where = "this cell" if file == own else "another cell"
        return f"{where}, line {'?' if line is None else line}{backward}" + (f": {text}" if text else "")
    named = f" in {function}()" if function and not function.startswith("<") else ""
    return f"{file}:{'?' if line is None else line}{named}{backward}"


def _size(size: Optional[int]) -> str:
    return "an unknown amount" if size is None else sizes.text(size)
