"""The cell magic: `%load_ext gpumemtrace`, then `%%gpumemtrace` as the first line of a cell.

Constraint: what a cell held is known from the trace alone, and a notebook may have been started without us. Consequence: the first
such cell starts the recording, where nobody has; the cell lies between two marks, and what is printed after it is the report of
what lies between these. IPython is no dependency of this package: it is there where this is called.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional, Tuple

from . import _said
from ._command import CommandFailed, report
from ._start import start

#: Lines that are printed of each list.
_MOST_LINES = 5
_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))

_cells = 0
#: The names that IPython gives to the texts of cells, with the numbers they are shown under.
_numbers: Dict[str, int] = {}


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
    begin, end = f"cell {_cells} begins", f"cell {_cells} ends"
    try:
        start(line.strip() or None)
    except (RuntimeError, OSError) as error:
        print(f"gpumemtrace: {error}")
        shell.run_cell(cell)
        return
    _remember(shell, cell)
    _said.mark(begin)
    try:
        with _said.phase("cell"):
            # It shows the cell's own errors, and returns.
            shell.run_cell(cell)
    finally:
        _said.mark(end)
    print(_told(begin, end))


def _remember(shell: Any, cell: str) -> None:
    try:
        name = shell.compile.get_code_name(cell, shell.transform_cell(cell), shell.execution_count)
        _numbers[name] = shell.execution_count
    except Exception:  # Of a version that names them otherwise: then its own name is shown.
        pass


def _told(begin: str, end: str) -> str:
    if not _said.is_recording():
        return "gpumemtrace: the cell made no GPU call, nor did any before it"
    asked = ("--peak", "--since", f"mark:{begin}", "--at", f"mark:{begin}", "--at", f"mark:{end}")
    try:
        whole = report(None, *asked)
    except (CommandFailed, _said.NotRecording, FileNotFoundError) as error:
        return f"gpumemtrace: what the cell held is not known: {error}"
    at: Dict[Tuple[str, int], Dict[str, Any]] = {
        (instant["asked"], instant["device"]): instant for instant in whole.get("instants", [])
    }
    lines: List[str] = []
    for peak in whole.get("peak", []):
        device = peak["device"]
        lines += _device(peak, at.get((f"mark:{begin}", device)), at.get((f"mark:{end}", device)))
    if not lines:
        lines = ["gpumemtrace: the cell held no GPU memory"]
    for trace in whole["traces"]:
        if not trace["complete"]:
            lines.append(f"  something is missing in the trace: `gpumemtrace info {trace['path']}` says what")
    return "\n".join(lines)


def _device(peak: Dict[str, Any], before: Optional[Dict[str, Any]], after: Optional[Dict[str, Any]]) -> List[str]:
    layer = peak["layer"]
    what = "tensors" if layer == "torch" else "memory of the driver (PyTorch's own allocator was not seen)"
    # A device that is met in this cell has held nothing before it.
    then, now = _held(before, layer, 0), _held(after, layer, None)
    left = "an unknown amount" if now is None or then is None else _signed(now - then)
    lines = [
        f"GPU memory of this cell, device {peak['device']}: at most {_size(peak['live_bytes'])} of {what}, "
        f"{_size(then)} before it, {left} left behind"
    ]
    lines += _rows("at the peak", [(site["bytes"], site["site"]) for site in peak["sites"]])
    held: Dict[str, int] = {site["site"]["id"]: site["bytes"] for site in (before or {}).get("sites", [])}
    sites = (after or {}).get("sites", [])
    more = [(site["bytes"] - held.get(site["site"]["id"], 0), site["site"]) for site in sites]
    return lines + _rows("left behind", sorted((row for row in more if row[0] > 0), key=lambda row: -row[0]))


def _held(instant: Optional[Dict[str, Any]], layer: str, unknown: Optional[int]) -> Optional[int]:
    if instant is None:
        return unknown
    value: Optional[int] = instant["live_bytes" if layer == "torch" else "device_bytes"]
    # Where PyTorch had handed out nothing by then.
    return 0 if value is None and layer == "torch" else value


def _rows(title: str, rows: List[Tuple[int, Dict[str, Any]]]) -> List[str]:
    if not rows:
        return []
    shown = [f"  {title}:"] + [f"    {_size(size):>12}  {_place(site)}" for size, site in rows[:_MOST_LINES]]
    if len(rows) > _MOST_LINES:
        rest = sum(size for size, _ in rows[_MOST_LINES:])
        shown.append(f"    {_size(rest):>12}  {len(rows) - _MOST_LINES} more lines")
    return shown


def _place(site: Dict[str, Any]) -> str:
    file, line, function = site.get("file"), site.get("line"), site.get("function")
    if file is None:
        return str(site.get("module") or "(no Python stack)")
    where = f"{file}:{'?' if line is None else line}"
    # ipykernel and IPython have names of their own for the text of a cell.
    cell = re.search(r"ipykernel_\d+/\d+\.py$|^<ipython-input-(\d+)-", file)
    if file in _numbers or cell:
        number = _numbers.get(file) or cell and cell[1]
        where = f"{f'cell {number}' if number else 'another cell'}, line {'?' if line is None else line}"
    backward = ", its backward" if site.get("backward") else ""
    named = f" in {function}()" if function and not function.startswith("<") else ""
    return where + named + backward


def _size(size: Optional[int]) -> str:
    if size is None:
        return "an unknown amount"
    for power, unit in _UNITS:
        if abs(size) >= power:
            return f"{size / power:.2f} {unit}"
    return f"{size} bytes"


def _signed(size: int) -> str:
    return f"{_size(size)}" if size >= 0 else f"-{_size(-size)}"
