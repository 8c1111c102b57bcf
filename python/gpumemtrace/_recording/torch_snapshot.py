"""PyTorch's memory snapshot, as the allocations that existed before a late `start()`."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, Iterator, List

_BLOCK, _SEGMENT, _MAPPED = 0, 1, 2
#: What the library takes for "unknown". Older versions of PyTorch do not report the pool.
_UNKNOWN_POOL = (2**64 - 1, 2**64 - 1)


class SnapshotEntry(ctypes.Structure):
    """A block or segment, in the layout that `gpumemtrace_held` takes. Sizes are in bytes."""

    _fields_ = [
        ("device", ctypes.c_uint32),
        ("kind", ctypes.c_uint32),
        ("address", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("requested", ctypes.c_uint64),
        ("stream", ctypes.c_uint64),
        ("pool", ctypes.c_uint64 * 2),
        ("allocated", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64),
    ]


def snapshot_entries(segments: List[Dict[str, Any]], with_segments: bool) -> Iterator[SnapshotEntry]:
    """The live blocks of `torch.cuda.memory_snapshot()`, preceded by its segments if requested.

    Each entry has the device's allocated and reserved bytes up to and including itself.
    """
    reserved: Dict[int, int] = {}
    allocated: Dict[int, int] = {}
    for segment in segments:
        device = segment["device"]
        reserved[device] = reserved.get(device, 0) + segment["total_size"]
        if with_segments:
            kind = _MAPPED if segment.get("is_expandable") else _SEGMENT
            yield _entry(segment, segment["address"], segment["total_size"], 0, (kind, 0, reserved[device]))
    for segment in segments:
        device, address = segment["device"], segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                allocated[device] = allocated.get(device, 0) + block["size"]
                totals = (_BLOCK, allocated[device], reserved[device])
                yield _entry(segment, address, block["size"], block.get("requested_size", 0), totals)
            # Blocks are contiguous. Older versions of PyTorch do not report their addresses.
            address += block["size"]


def _entry(segment: Dict[str, Any], address: int, size: int, requested: int, totals: Any) -> SnapshotEntry:
    pool = segment.get("segment_pool_id") or _UNKNOWN_POOL
    kind, allocated, reserved = totals
    return SnapshotEntry(
        segment["device"], kind, address, size, requested, segment["stream"], (ctypes.c_uint64 * 2)(*pool), allocated, reserved
    )
