"""One look at who holds what leaks: which blocks, whose tensors, by which names; and its answer, for the caller and for the trace.

Constraint: what is not known must be said, block by block. Consequence: each block of a leak's lines that was live at the end of a
step ends up in one row, of a holder or of a reason why there is none, and the rows add up to all of them.
"""

import gc
import threading
import time
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from . import library
from .names import Way, many_keys_are_items, told
from .torch_objects import Torch
from .search import Place, Walk, owned
from .paths import Ways

DEFAULT_LIMIT_S = 2.0
#: What the command may take to read the trace so far.
REPORT_LIMIT_S = 30.0
_SHARE_OF_WALK = 0.75
#: Rows that one look writes into the trace.
_MOST_ROWS = 4096

Look = Dict[str, Any]

_one_at_a_time = threading.Lock()


def look(when: str, command: str, limit_s: float = DEFAULT_LIMIT_S, report_limit_s: float = REPORT_LIMIT_S) -> Optional[Look]:
    """Looks, tells the trace, and answers; `None` where nothing is recorded, or another look is being taken."""
    trace = library.trace_path()
    if trace is None or not _one_at_a_time.acquire(False):
        return None
    try:
        return _look(trace, when, command, limit_s, report_limit_s)
    finally:
        _one_at_a_time.release()


def _look(trace: str, when: str, command: str, limit_s: float, report_limit_s: float) -> Look:
    answer: Look = {"when": when, "limit_ns": int(limit_s * 1e9), "leaks": []}
    rows: List[Row] = []
    begun = time.monotonic()
    try:
        leaks = library.suspects(trace, command, report_limit_s)
    except library.Failed as failed:
        answer["failed"] = str(failed)
    else:
        answer["report_ns"] = int((time.monotonic() - begun) * 1e9)
        if leaks:
            rows = _walk(leaks, limit_s, answer)
        answer["leaks"] = _by_leak(leaks, rows)
    text = {**answer, "leaks": len(answer["leaks"])}
    if len(rows) > _MOST_ROWS:
        text["unwritten"] = sum(row.blocks for row in rows[_MOST_ROWS:])
    library.write_look(text)
    for row in rows[:_MOST_ROWS]:
        library.write_holder(row.text, row.device, row.address, [row.blocks, row.bytes])
    return answer


class Row:
    """Some blocks of a site that one holder has, or nobody for one reason."""

    def __init__(self, leak: int, device: int, address: int, text: Dict[str, Any]) -> None:
        self.leak, self.device, self.address, self.text = leak, device, address, text
        self.blocks, self.bytes = 0, 0

    def add(self, blocks: int, in_bytes: int) -> None:
        self.blocks += blocks
        self.bytes += in_bytes


def _walk(leaks: List[Dict[str, Any]], limit_s: float, answer: Look) -> "List[Row]":
    """What the walk says of each block. Nothing of the heap is held when it returns."""
    begun = time.monotonic()
    wanted: Dict[Place, int] = {}
    for leak in leaks:
        for site in leak["sites"]:
            for address, in_bytes in site["listed"]:
                wanted[leak["device"], address] = in_bytes
    holders: Dict[Place, Dict[str, Any]] = {}
    reasons: Dict[Place, str] = {}
    torch = Torch.of_program()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        if torch is None:
            reasons = {block: "no_tensor" for block in wanted}
        else:
            with torch.quiet():
                holders, reasons, answer["objects"], answer["cut"] = _found(torch, wanted, begun, limit_s)
    finally:
        if was_enabled:
            gc.enable()
    answer["walk_ns"] = int((time.monotonic() - begun) * 1e9)
    return list(_rows(leaks, holders, reasons))


Found = Tuple[Dict[Place, Dict[str, Any]], Dict[Place, str], int, bool]


def _found(torch: Torch, wanted: Dict[Place, int], begun: float, limit_s: float) -> Found:
    """The holder of each block, or the reason why there is none; objects that were reached, and whether the time was up."""
    # What is found must be named as well.
    walk = Walk(torch, wanted, begun + limit_s * _SHARE_OF_WALK)
    walk.run()
    missing, is_cut = walk.missing(), walk.is_cut
    reasons = {block: "out_of_time" for block in missing}
    if missing and not is_cut:
        reasons = _why_missing(torch, missing)
    ways, named = Ways(torch, walk), []
    for block in walk.found:
        if time.monotonic() > begun + limit_s:
            is_cut = True
            reasons[block] = "out_of_time"
            continue
        named.append([ways.to(place, through) for place in walk.found[block] for through in walk.ways[place]])
    blocks = [block for block in walk.found if block not in reasons]
    holders = dict(_holders(blocks, many_keys_are_items(named)))
    return holders, reasons, len(walk.objects), is_cut


def _why_missing(torch: Torch, missing: "Set[Place]") -> Dict[Place, str]:
    """Of blocks that a whole walk has not come to."""
    if torch.left_unread:
        # A tensor that only a graph holds may have a face in Python as well.
        return {block: "saved_unread" for block in missing}
    has_tensor = owned(torch, missing)
    return {block: "no_name" if block in has_tensor else "no_tensor" for block in missing}


def _holders(blocks: "List[Place]", ways: "List[List[Way]]") -> "Iterator[Tuple[Place, Dict[str, Any]]]":
    """Of several ways to a block that counts whose name leads to most blocks; of those, the shortest, which came first."""
    counts: Dict[Any, int] = {}
    for some in ways:
        for key in {way.key()[:2] for way in some}:
            counts[key] = counts.get(key, 0) + 1
    groups: Dict[Any, List[Tuple[Place, Way]]] = {}
    for block, some in zip(blocks, ways):
        best = max(some, key=lambda way: (counts[way.key()[:2]], -len(way.tail)))
        groups.setdefault(best.key(), []).append((block, best))
    for group in groups.values():
        text = told([way for _, way in group])
        for block, _ in group:
            yield block, text


def _rows(
    leaks: List[Dict[str, Any]], holders: Dict[Place, Dict[str, Any]], reasons: Dict[Place, str]
) -> "Iterator[Row]":
    for number, leak in enumerate(leaks):
        device: int = leak["device"]
        for site in leak["sites"]:
            rows: Dict[Any, Row] = {}
            blocks, in_bytes = site["blocks"], site["bytes"]
            for address, size in site["listed"]:
                text = holders.get((device, address)) or {"why": reasons[device, address]}
                row = rows.setdefault(id(text) if "name" in text else text["why"], Row(number, device, address, text))
                row.add(1, size)
                blocks, in_bytes = blocks - 1, in_bytes - size
            if blocks and site["listed"]:
                row = Row(number, device, site["listed"][0][0], {"why": "not_looked_at"})
                row.add(blocks, in_bytes)
                rows["not_looked_at"] = row
            yield from rows.values()


def _by_leak(leaks: List[Dict[str, Any]], rows: "List[Row]") -> List[Dict[str, Any]]:
    """For the caller: each leak, with its holders and what was not resolved."""
    found: List[Dict[str, Any]] = []
    for number, leak in enumerate(leaks):
        holders: Dict[str, Dict[str, Any]] = {}
        unresolved: Dict[str, Dict[str, Any]] = {}
        for row in rows:
            if row.leak != number:
                continue
            by, key = (holders, repr(row.text)) if "name" in row.text else (unresolved, str(row.text["why"]))
            told_of = by.setdefault(key, {**row.text, "blocks": 0, "bytes": 0})
            told_of["blocks"] += row.blocks
            told_of["bytes"] += row.bytes
        site = {name: leak.get(name) for name in ("file", "line", "function")}
        found.append(
            {
                "site": site,
                "device": leak["device"],
                "blocks": sum(one["blocks"] for one in leak["sites"]),
                "bytes": sum(one["bytes"] for one in leak["sites"]),
                "holders": sorted(holders.values(), key=lambda one: -int(one["bytes"])),
                "unresolved": sorted(unresolved.values(), key=lambda one: -int(one["blocks"])),
            }
        )
    return found
