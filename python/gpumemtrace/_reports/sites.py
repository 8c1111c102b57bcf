"""Call sites of a report: as text, and compared between two moments."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple


def format_site(site: Dict[str, Any], folder: str = "") -> str:
    """`train.py:8 in main() (backward)`.

    Paths below `folder`, which ends with a separator, are shown relative to it. Native code is
    named by its library.
    """
    file, line, function = site.get("file"), site.get("line"), site.get("function")
    if file is None:
        return str(site.get("module") or "<no Python frame>")
    if folder and file.startswith(folder):
        file = file[len(folder) :]
    named = f" in {function}()" if function and not function.startswith("<") else ""
    backward = " (backward)" if site.get("is_backward") else ""
    return f"{file}:{'?' if line is None else line}{named}{backward}"


def grown_sites(before: Optional[Dict[str, Any]], after: Optional[Dict[str, Any]]) -> List[Tuple[int, Dict[str, Any]]]:
    """The call sites that hold more bytes in the second of two snapshots, and how many more.

    The largest come first. Without a snapshot, nothing was held.
    """
    held = {row["site"]["id"]: row["bytes"] for row in (before or {}).get("sites", [])}
    grown = [(row["bytes"] - held.get(row["site"]["id"], 0), row["site"]) for row in (after or {}).get("sites", [])]
    return sorted((row for row in grown if row[0] > 0), key=lambda row: -row[0])
