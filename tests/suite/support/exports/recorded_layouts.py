"""Snapshots of PyTorch as requests for the model of its allocator, with the addresses of the run.

usage: recorded_layouts.py FOLDER      compares each snapshot below FOLDER, and prints a table

A snapshot that began before the process's first allocation is replayed from nothing. From others,
the state before their first event is rebuilt: its segments, and the blocks that were taken in them.
The example `recorded_layout` of the allocator oracle does the replay.
"""

import os
import subprocess
import sys
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import snapshot_oracle  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[4]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
BUILD = Path(os.environ.get("GPUMEMTRACE_BUILD", TARGET / "release"))
REPLAY = BUILD / "examples" / "recorded_layout"
SMALL_SEGMENT, SMALL_REQUEST = 2 << 20, 1 << 20
DEFAULT_POOL = (0, 0)
VERSIONS = [f"2.{minor}.0" for minor in range(1, 16)]
#: Calls of the driver by event, as `recorded_layout` reads them.
DRIVER_CALLS = {"segment_alloc": "+", "segment_free": "-", "segment_map": "<", "segment_unmap": ">"}
RETURNS = ("segment_free", "segment_unmap")
KNOWN = {"alloc", "free_requested", "free_completed", "oom", "snapshot", *DRIVER_CALLS}


class NotComparable(Exception):
    """The snapshot lacks something that the replay needs; the text says what."""


@dataclass
class Comparison:
    """One device of a snapshot, replayed by the rules of one release."""

    version: str
    events: int
    #: Where the model and the run differ; None if nowhere.
    difference: str


def lines_of(history):
    """Returns the lines for `recorded_layout`, or raises NotComparable."""
    events = history.events
    check_comparable(history)
    lines, pool_of = list(state_lines(history)), private_pools(history)
    for place, event in enumerate(events):
        action, addr, size, stream = event["action"], event.get("addr"), event["size"], event.get("stream", 0)
        if action == "alloc":
            pool = pool_of(place, addr)
            lines.append(f"a {addr} {size} {stream}" + (f" {pool}" if pool else ""))
        elif action == "oom":
            lines.append(f"o {size} {stream}")
        elif action == "free_requested":
            lines.append(f"f {addr}")
        elif action == "free_completed":
            lines.append(f"c {addr}")
        elif action in DRIVER_CALLS:
            lines.append(f"{DRIVER_CALLS[action]} {addr} {size}")
            if action in RETURNS and ends_release(events, place):
                lines.append("e")
    return lines


def ends_release(events, place):
    """Whether this is the last of the memory that `empty_cache()` returned.

    A request that released memory for a second attempt gets more, or fails, with the same stack.
    """
    if place + 1 == len(events):
        return True
    event, after = events[place], events[place + 1]
    is_retry = after["action"] in ("segment_alloc", "segment_map", "oom") and after.get("frames") == event.get("frames")
    return after["action"] not in RETURNS and not is_retry


def private_pools(history):
    """Returns a function of (place, address): the number of the private pool, 0 for none.

    Events do not name pools, but the segments at the end do. Earlier segments count as segments of
    the default pool.
    """
    ids = {}
    private = sorted((segment["address"], segment["total_size"], ids.setdefault(id_of_pool(segment), len(ids) + 1))
                     for segment in history.segments if id_of_pool(segment) != DEFAULT_POOL)
    starts = [start for start, _, _ in private]
    freed = {event["addr"]: place for place, event in enumerate(history.events) if event["action"] == "segment_free"}

    def pool_of(place, addr):
        at = bisect_right(starts, addr) - 1
        if at < 0:
            return 0
        start, size, pool = private[at]
        return pool if addr < start + size and place > freed.get(start, -1) else 0

    return pool_of


def id_of_pool(segment):
    return tuple(segment.get("segment_pool_id", DEFAULT_POOL))


def check_comparable(history):
    actions = {event["action"] for event in history.events}
    if len(history.events) < 2:
        raise NotComparable("no history")
    if unknown := actions - KNOWN:
        raise NotComparable(f"events {', '.join(sorted(unknown))}")
    if "free_requested" not in actions and "free_completed" in actions:
        raise NotComparable("free_requested is skipped")
    if history.begins_late and (history.rounding.expandable or any(id_of_pool(segment) != DEFAULT_POOL for segment in history.segments)):
        raise NotComparable("expandable segments or private pools before the first event")
    streams = {event.get("stream", 0) for event in history.events}
    if history.begins_late and len(streams | {segment.get("stream", 0) for segment in history.segments}) > 1:
        raise NotComparable("several streams before the first event")
    if any(block.state == snapshot_oracle.PENDING for block in history.before.values()):
        raise NotComparable("blocks that waited for a stream before the first event")


def state_lines(history):
    """The segments before the first event, each filled in turn, and then the free parts freed."""
    blocks, freed = sorted(history.before.values(), key=lambda block: block.addr), []
    stream = next((event["stream"] for event in history.events if "stream" in event), 0)
    for start, size in sorted(history._ranges.items()):
        # In a segment of 2 MiB, only requests of up to 1 MiB get memory.
        most = SMALL_REQUEST if size == SMALL_SEGMENT else size
        yield f"p {start} {size}"
        at = start
        inside = [(block.addr, block.size) for block in blocks if start <= block.addr < start + size]
        for addr, taken in [*inside, (start + size, 0)]:
            while at < addr:
                part = min(addr - at, most)
                yield f"l {at} {part} {stream}"
                freed.append(at)
                at += part
            if taken:
                yield f"l {addr} {taken} {stream}"
                at = addr + taken
    # Only now, so that no segment is filled from another one.
    for addr in freed:
        yield f"u {addr}"


def layout_at_end(history):
    """The lines that the replay must print."""
    segments = sorted((segment["address"], segment["total_size"]) for segment in history.segments)
    blocks = sorted((block.addr, block.size) for block in history.blocks.values())
    return [f"s {addr} {size}" for addr, size in segments] + [f"b {addr} {size}" for addr, size in blocks]


def compare(history, settings, version):
    """Replays a device by the rules of a release."""
    lines = lines_of(history)
    done = subprocess.run([REPLAY, version, settings], input="\n".join(lines), capture_output=True, text=True, timeout=600)
    if done.returncode not in (0, 1) or done.stderr:
        raise AssertionError(f"recorded_layout exited with {done.returncode}: {done.stderr}")
    difference = done.stdout.strip() if done.returncode else None
    if difference is None and done.stdout.splitlines() != layout_at_end(history):
        difference = "the layout at the end"
    return Comparison(version, len(history.events), difference)


def settings_of(snapshot):
    """The value of PYTORCH_CUDA_ALLOC_CONF that the snapshot names; files of torch 2.1 name none."""
    return (snapshot.get("allocator_settings") or {}).get("PYTORCH_CUDA_ALLOC_CONF") or ""


def compare_file(path, versions=VERSIONS):
    """Yields (device, history, comparisons) of a file; comparisons is a text if there is none."""
    snapshot = snapshot_oracle.load(path)
    for device, history in snapshot_oracle.devices(snapshot).items():
        try:
            yield device, history, [compare(history, settings_of(snapshot), version) for version in versions]
        except NotComparable as why:
            yield device, history, str(why)


def main(folder):
    for path in sorted(Path(folder).rglob("*")):
        if path.suffix not in (".pickle", ".pkl", ".json", ".gz") or path.name == "stats.json":
            continue
        for device, history, found in compare_file(path):
            start = "rebuilt" if history.begins_late else "first event"
            if isinstance(found, str):
                print(f"{path.name} GPU {device}: not compared: {found}")
                continue
            equal = [one.version for one in found if one.difference is None]
            print(f"{path.name} GPU {device}: {len(history.events)} events from {start}, equal under {len(equal)} of {len(found)} releases")
            for difference in sorted({one.difference for one in found if one.difference}):
                versions = [one.version for one in found if one.difference == difference]
                print(f"  {', '.join(versions)}: {difference[:200]}")


if __name__ == "__main__":
    main(sys.argv[1])
