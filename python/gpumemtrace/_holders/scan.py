"""One holder scan: find the leaked blocks, their tensors, and the names that hold those.

The result goes to the caller and into the trace. Every block of a leak's call sites that was live
at the end of a step belongs to exactly one row: that of a holder, or that of the reason why none
was found. So the rows of a leak add up to its blocks.
"""

import gc
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

from . import library
from .names import ReferencePath, describe_holder, merge_keys
from .paths import PathNamer
from .search import BlockAddress, ReferenceSearch, blocks_with_tensor
from .torch_objects import TorchObjects

DEFAULT_LIMIT_S = 2.0
#: Time limit for the command that reads the trace.
REPORT_LIMIT_S = 30.0
#: The rest of the time is for naming what the search has found.
_SEARCH_SHARE = 0.75
#: Rows that one scan writes into the trace.
_MAX_ROWS = 4096

ScanResult = Dict[str, Any]

_scan_lock = threading.Lock()


#: Reads the leak candidates of a trace within a time limit. Raises `ScanFailed`.
ReadCandidates = Callable[[str, float], List[Dict[str, Any]]]


def scan_holders(
    when: str,
    read: ReadCandidates,
    limit_s: float = DEFAULT_LIMIT_S,
    report_limit_s: float = REPORT_LIMIT_S,
    total_limit_s: float = float("inf"),
    add_counters: Callable[[ScanResult], None] = lambda result: None,
) -> Optional[ScanResult]:
    """Scans, writes the result into the trace, and returns it.

    `report_limit_s` is for reading the trace, `limit_s` for the search, `total_limit_s` for both.
    `add_counters` may add to the result before it is written. Returns `None` if the process is not
    being recorded, or another thread is scanning.
    """
    trace = library.trace_path()
    if trace is None or not _scan_lock.acquire(False):
        return None
    try:
        result: ScanResult = {"when": when, "limit_ns": int(limit_s * 1e9), "leaks": []}
        rows = _scan(trace, read, result, (limit_s, report_limit_s, total_limit_s))
        add_counters(result)
        _write(result, rows)
        return result
    finally:
        _scan_lock.release()


def forget_running_scan() -> None:
    """For a forked child, where the thread that was scanning does not exist."""
    global _scan_lock
    _scan_lock = threading.Lock()


def _scan(
    trace: str, read: ReadCandidates, result: ScanResult, limits_s: Tuple[float, float, float]
) -> "List[HolderRow]":
    rows: List[HolderRow] = []
    limit_s, report_limit_s, total_limit_s = limits_s
    begun = time.monotonic()
    try:
        leaks = read(trace, min(report_limit_s, total_limit_s))
    except library.ScanFailed as failed:
        result["failed"] = str(failed)
        return rows
    reading_s = time.monotonic() - begun
    result["report_ns"] = int(reading_s * 1e9)
    limit_s = min(limit_s, total_limit_s - reading_s)
    result["limit_ns"] = max(int(limit_s * 1e9), 0)
    if leaks:
        rows = _search_blocks(leaks, limit_s, result)
    result["leaks"] = _summarize_leaks(leaks, rows)
    return rows


def _write(result: ScanResult, rows: "List[HolderRow]") -> None:
    summary = {**result, "leaks": len(result["leaks"])}
    if len(rows) > _MAX_ROWS:
        summary["unwritten"] = sum(row.blocks for row in rows[_MAX_ROWS:])
    library.write_scan(summary)
    for row in rows[:_MAX_ROWS]:
        library.write_holder(row.text, row.device, row.address, row.blocks, row.bytes)


class HolderRow:
    """Blocks of one call site with the same holder, or with the same reason for having none."""

    def __init__(self, leak: int, device: int, address: int, text: Dict[str, Any]) -> None:
        self.leak, self.device, self.address, self.text = leak, device, address, text
        self.blocks, self.bytes = 0, 0

    def add(self, blocks: int, size_bytes: int) -> None:
        self.blocks += blocks
        self.bytes += size_bytes


def _search_blocks(leaks: List[Dict[str, Any]], limit_s: float, result: ScanResult) -> "List[HolderRow]":
    """Searches for the blocks of all leaks. Holds no object of the program when it returns."""
    begun = time.monotonic()
    wanted: Dict[BlockAddress, int] = {}
    for leak in leaks:
        for stack in leak["stacks"]:
            for address, size_bytes in stack["listed"]:
                wanted[leak["device"], address] = size_bytes
    holders: Dict[BlockAddress, Dict[str, Any]] = {}
    reasons: Dict[BlockAddress, str] = {}
    torch = TorchObjects.of_program()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        if torch is None:
            reasons = {block: "no_tensor" for block in wanted}
        else:
            with torch.torch_function_disabled():
                holders, reasons, result["objects"], result["cut"] = _find_holders(torch, wanted, begun, limit_s)
    finally:
        if was_enabled:
            gc.enable()
    result["walk_ns"] = int((time.monotonic() - begun) * 1e9)
    return list(_rows(leaks, holders, reasons))


_SearchOutcome = Tuple[Dict[BlockAddress, Dict[str, Any]], Dict[BlockAddress, str], int, bool]


def _find_holders(torch: TorchObjects, wanted: Dict[BlockAddress, int], begun: float, limit_s: float) -> _SearchOutcome:
    """Holders by block, reasons for the other blocks, objects reached, and whether time ran out."""
    search = ReferenceSearch(torch, wanted, begun + limit_s * _SEARCH_SHARE)
    search.run()
    missing, is_cut = search.missing(), search.is_cut
    reasons = {block: "out_of_time" for block in missing}
    if missing and not is_cut:
        reasons = _reasons_for_missing(torch, missing)
    namer, paths = PathNamer(torch, search), []
    for block in search.found:
        if time.monotonic() > begun + limit_s:
            is_cut = True
            reasons[block] = "out_of_time"
            continue
        tensors = search.found[block]
        paths.append([namer.path_to(tensor, parent) for tensor in tensors for parent in search.tensor_parents[tensor]])
    blocks = [block for block in search.found if block not in reasons]
    holders = dict(_choose_holders(blocks, merge_keys(paths)))
    return holders, reasons, len(search.objects), is_cut


def _reasons_for_missing(torch: TorchObjects, missing: "Set[BlockAddress]") -> Dict[BlockAddress, str]:
    """Why a completed search did not find these blocks."""
    if torch.has_unread_saved:
        # A block held only by an unread graph may have a Python tensor as well.
        return {block: "saved_unread" for block in missing}
    has_tensor = blocks_with_tensor(torch, missing)
    # `gc.get_objects()` does not list frozen objects.
    others = "frozen" if gc.get_freeze_count() else "no_tensor"
    return {block: "no_name" if block in has_tensor else others for block in missing}


def _choose_holders(
    blocks: "List[BlockAddress]", paths: "List[List[ReferencePath]]"
) -> "Iterator[Tuple[BlockAddress, Dict[str, Any]]]":
    """For each block, the path with the name that leads to most blocks; if several, the shortest.

    A parameter is `net[0].weight` to the user, also if an optimizer's groups lead to all of them.
    """
    counts: Dict[Any, int] = {}
    for alternatives in paths:
        for key in {path.key()[:2] for path in alternatives}:
            counts[key] = counts.get(key, 0) + 1
    groups: Dict[Any, List[Tuple[BlockAddress, ReferencePath]]] = {}
    for block, alternatives in zip(blocks, paths):
        # The search is breadth-first and max() keeps the first of equals, so that is the shortest.
        best = max(
            alternatives, key=lambda path: (not path.is_in_optimizer(), counts[path.key()[:2]], -len(path.tail))
        )
        groups.setdefault(best.key(), []).append((block, best))
    for group in groups.values():
        text = describe_holder([path for _, path in group])
        for block, _ in group:
            yield block, text


def _rows(
    leaks: List[Dict[str, Any]], holders: Dict[BlockAddress, Dict[str, Any]], reasons: Dict[BlockAddress, str]
) -> "Iterator[HolderRow]":
    for number, leak in enumerate(leaks):
        device: int = leak["device"]
        for stack in leak["stacks"]:
            rows: Dict[Any, HolderRow] = {}
            blocks, size_bytes = stack["blocks"], stack["bytes"]
            for address, size in stack["listed"]:
                text = holders.get((device, address)) or {"why": reasons[device, address]}
                key = id(text) if "name" in text else text["why"]
                rows.setdefault(key, HolderRow(number, device, address, text)).add(1, size)
                blocks, size_bytes = blocks - 1, size_bytes - size
            if blocks and stack["listed"]:
                row = HolderRow(number, device, stack["listed"][0][0], {"why": "not_searched"})
                row.add(blocks, size_bytes)
                rows["not_searched"] = row
            yield from rows.values()


def _summarize_leaks(leaks: List[Dict[str, Any]], rows: "List[HolderRow]") -> List[Dict[str, Any]]:
    """The caller's result: each leak with its holders and its unresolved blocks."""
    found: List[Dict[str, Any]] = []
    for number, leak in enumerate(leaks):
        holders: Dict[str, Dict[str, Any]] = {}
        unresolved: Dict[str, Dict[str, Any]] = {}
        for row in rows:
            if row.leak != number:
                continue
            group, key = (holders, repr(row.text)) if "name" in row.text else (unresolved, str(row.text["why"]))
            totals = group.setdefault(key, {**row.text, "blocks": 0, "bytes": 0})
            totals["blocks"] += row.blocks
            totals["bytes"] += row.bytes
        site = {name: leak.get(name) for name in ("file", "line", "function")}
        found.append(
            {
                "site": site,
                "device": leak["device"],
                "blocks": sum(one["blocks"] for one in leak["stacks"]),
                "bytes": sum(one["bytes"] for one in leak["stacks"]),
                "holders": sorted(holders.values(), key=lambda one: -int(one["bytes"])),
                "unresolved": sorted(unresolved.values(), key=lambda one: -int(one["blocks"])),
            }
        )
    return found
