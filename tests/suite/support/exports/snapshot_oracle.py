"""What a PyTorch memory snapshot says, computed from its own segments and events.

Shares no code with the reader in crates/torch-snapshot/. Events carry requested sizes; the sizes of
blocks follow from PyTorch's rules for rounding and splitting, applied to the free memory at each
allocation. The replayed end must equal the snapshot's segments, block by block
([`DeviceHistory.mismatches`]), so the rules are checked by every file.
"""

import gzip
import io
import json
import pickle
import re
from bisect import bisect_right, insort
from dataclasses import dataclass, field, replace
from pathlib import Path

MIN_BLOCK, SMALL = 512, 1 << 20
LIVE, PENDING = "active_allocated", "active_pending_free"


class DataOnly(pickle.Unpickler):
    """Refuses every class and function, so that nothing of a file runs."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"names {module}.{name}")

    def persistent_load(self, pid):
        raise pickle.UnpicklingError("refers to an object outside")


def load(path):
    data = Path(path).read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    if data[:1] == b"{":
        return json.loads(data)
    return DataOnly(io.BytesIO(data)).load()


@dataclass
class Block:
    addr: int
    size: int
    requested: int
    state: str
    frames: tuple = None  # None: unknown
    label: str = None  # PyTorch's category, or a text of the program
    forward: tuple = ()  # lines of the forward call, innermost first


@dataclass
class Totals:
    """Bytes of a device after an event; live bytes are PyTorch's `allocated`."""

    live: int = 0
    requested: int = 0
    pending: int = 0
    reserved: int = 0

    def copy(self):
        return Totals(self.live, self.requested, self.pending, self.reserved)


def frames_of(record):
    """The stack as (file, line, name), innermost first; None if not recorded."""
    frames = record.get("frames")
    if frames is None and record.get("history"):
        frames = record["history"][0].get("frames")
    return tuple((frame["filename"], frame["line"], frame["name"]) for frame in frames) if frames else None


def label_of(event):
    """The label that an event gives its block; None for none."""
    return (event.get("category") or event.get("user_metadata") or "").strip() or None


def forward_of(event):
    """The frames of the forward call of an event in autograd, innermost first (anomaly mode)."""
    lines = [re.match(r'\s*File "(.+)", line (\d+), in (\S+)', line) for line in event.get("forward_frames", [])]
    return tuple((line[1], int(line[2]), line[3]) for line in reversed(lines))


def end_blocks(segment):
    """The blocks of a segment. Files of torch 2.0 have no addresses and no frames in blocks."""
    addr = segment["address"]
    for block in segment["blocks"]:
        requested = block.get("requested_size", block["size"])
        yield Block(addr, block["size"], requested, block["state"].replace("awaiting", "pending"), frames_of(block))
        addr += block["size"]


class Rounding:
    """PyTorch's sizes of blocks for requested sizes. Before torch 2.2 snapshots lack the settings."""

    def __init__(self, settings, expandable):
        self.is_known = settings is not None
        settings = settings or {}
        self.divisions = settings.get("roundup_power2_divisions") or {}
        self.max_split = settings.get("max_split_size", -1)
        if self.max_split < 0:
            self.max_split = 1 << 63
        self.expandable = bool(settings.get("expandable_segments", expandable))

    def rounded(self, requested):
        if requested < MIN_BLOCK:
            return MIN_BLOCK
        interval = min(max(requested.bit_length() - 21, 0), 15)
        divisions = self.divisions.get(str(1 << interval), 0)
        if divisions > 1 and requested > MIN_BLOCK * divisions:
            floor = 1 << (requested.bit_length() - 1)
            step = floor >> (divisions.bit_length() - 1)
            return requested if requested == floor else -(-requested // step) * step
        return -(-requested // MIN_BLOCK) * MIN_BLOCK

    def block_size(self, requested, free):
        """The size of a block in `free` bytes: all of them where PyTorch does not split."""
        size = self.rounded(requested)
        rest = free - size
        if size <= SMALL or self.expandable:
            splits = rest >= MIN_BLOCK
        else:
            splits = size < self.max_split and rest > SMALL
        return size if splits else free


@dataclass
class DeviceHistory:
    """One device: its state at the end, and at each event by undoing and redoing the history."""

    device: int
    segments: list
    events: list
    rounding: Rounding
    end: Totals = field(default_factory=Totals)
    #: Totals before the first event, and after each.
    course: list = field(default_factory=list)
    #: Blocks at the first moment with the most live bytes.
    peak_blocks: dict = field(default_factory=dict)
    peak: Totals = None
    #: Blocks that were live before the first event.
    before: dict = field(default_factory=dict)
    #: Differences between the replayed end and the segments.
    mismatches: list = field(default_factory=list)
    #: Blocks older than the history, of a size that could not be derived with certainty.
    uncertain: int = 0

    def __post_init__(self):
        self.blocks = {block.addr: block for segment in self.segments for block in end_blocks(segment)
                       if block.state in (LIVE, PENDING)}
        for block in self.blocks.values():
            self._count(self.end, block, 1)
        self.end.reserved = sum(segment["total_size"] for segment in self.segments)
        self._undo()
        self._redo()

    @staticmethod
    def _count(totals, block, sign):
        if block.state == LIVE:
            totals.live += sign * block.size
            totals.requested += sign * block.requested
        else:
            totals.pending += sign * block.size

    def _undo(self):
        """Finds the reserved ranges and blocks before the first event."""
        ranges = {segment["address"]: segment["total_size"] for segment in self.segments}
        blocks = dict(self.blocks)
        for event in reversed(self.events):
            action, addr, size = event["action"], event.get("addr"), event["size"]
            if action == "alloc":
                blocks.pop(addr, None)
            elif action == "free_completed":
                blocks[addr] = Block(addr, 0, size, PENDING)
            elif action == "free_requested":
                old = blocks.get(addr) or Block(addr, 0, size, LIVE)
                blocks[addr] = Block(addr, old.size, size, LIVE, old.frames)
            elif action in ("segment_alloc", "segment_map"):
                cut(ranges, addr, size)
            elif action in ("segment_free", "segment_unmap"):
                join(ranges, addr, size, action == "segment_unmap")
        # If PyTorch was asked to skip these events, a completed free says that the block was live.
        requested = {event["addr"] for event in self.events if event["action"] == "free_requested"}
        skipped = not requested and sum(event["action"] == "free_completed" for event in self.events) > 1
        starts = sorted(ranges)
        order = sorted(blocks)
        for index, addr in enumerate(order):
            block = blocks[addr]
            if skipped and block.size == 0:
                block.state = LIVE
            if block.size == 0:
                start = starts[max(bisect_right(starts, addr) - 1, 0)] if starts else addr
                limit = start + ranges.get(start, 0)
                if index + 1 < len(order):
                    limit = min(limit, order[index + 1])
                block.size = self.rounding.block_size(block.requested, max(limit - addr, 0))
                if block.size < self.rounding.rounded(block.requested):
                    block.size = self.rounding.rounded(block.requested)
                    self.uncertain += 1
                elif limit - addr - block.size > SMALL and block.size > SMALL and not self.rounding.expandable:
                    self.uncertain += 1
        self.before, self._ranges = blocks, ranges

    def _redo(self):
        space = FreeSpace(self._ranges, self.before)
        # Without the settings, the sizes of blocks that survive are taken from the segments.
        survivors = {} if self.rounding.is_known else {
            event["addr"]: place for place, event in enumerate(self.events) if event["action"] == "alloc" and event["addr"] in self.blocks}
        blocks, now = dict(self.before), Totals(reserved=sum(self._ranges.values()))
        for block in blocks.values():
            self._count(now, block, 1)
        self.course.append(now.copy())
        self.peak, self.peak_blocks = now.copy(), dict(blocks)
        top_changed, is_at_peak = False, True
        for place, event in enumerate(self.events):
            action, addr, size = event["action"], event.get("addr"), event["size"]
            if action == "alloc":
                block_size = self.blocks[addr].size if survivors.get(addr) == place else self.rounding.block_size(size, space.free_at(addr, self.rounding.rounded(size)))
                block = blocks[addr] = Block(addr, block_size, size, LIVE, frames_of(event), label_of(event), forward_of(event))
                space.take(addr, block.size)
                self._count(now, block, 1)
            elif action in ("free_requested", "free_completed"):
                block = blocks.get(addr)
                if block is None:
                    self.mismatches.append(f"{action} of no block at {addr:#x}")
                    continue
                self._count(now, block, -1)
                if action == "free_requested":
                    block = blocks[addr] = Block(addr, block.size, block.requested, PENDING, block.frames)
                    self._count(now, block, 1)
                else:
                    del blocks[addr]
                    space.give(addr, block.size)
            elif action in ("segment_alloc", "segment_map"):
                now.reserved += size
                space.add(addr, size, action == "segment_map")
            elif action in ("segment_free", "segment_unmap"):
                now.reserved -= size
                space.remove(addr, size)
            elif action == "annotate" and label_of(event) and addr in blocks:
                blocks[addr] = replace(blocks[addr], label=label_of(event))
                if is_at_peak and addr in self.peak_blocks:
                    self.peak_blocks[addr] = blocks[addr]
            self.course.append(now.copy())
            is_at_peak &= action not in ("alloc", "free_requested")
            if now.live > self.peak.live:
                self.peak, self.peak_blocks, top_changed, is_at_peak = now.copy(), None, True, True
            if top_changed and self.peak_blocks is None:
                self.peak_blocks = {a: b for a, b in blocks.items() if b.state == LIVE}
        self.peak_blocks = {a: b for a, b in self.peak_blocks.items() if b.state == LIVE}
        for addr in sorted(blocks.keys() | self.blocks.keys()):
            ours, theirs = blocks.get(addr), self.blocks.get(addr)
            same = ours and theirs and (ours.size, ours.requested, ours.state) == (theirs.size, theirs.requested, theirs.state)
            if not same:
                self.mismatches.append(f"{addr:#x}: {ours} is not {theirs}")

    @property
    def begins_late(self):
        """True if memory was reserved or in use before the first event."""
        return bool(self.before or self._ranges)

    @property
    def lost_events(self):
        """True if a block has a stack but no allocation: recording began before the first event.

        A history of one event is none: `enabled="state"` keeps stacks only.
        """
        return len(self.events) > 1 and any(block.frames for block in self.before.values())

    def peak_by_stack(self):
        sums = {}
        for block in self.peak_blocks.values():
            sums[block.frames] = sums.get(block.frames, 0) + block.size
        return sums


def cut(ranges, addr, size):
    """Removes [addr, addr + size) from the range that contains it."""
    for start, length in list(ranges.items()):
        if start <= addr and addr + size <= start + length:
            del ranges[start]
            if addr > start:
                ranges[start] = addr - start
            if addr + size < start + length:
                ranges[addr + size] = start + length - addr - size
            return


def join(ranges, addr, size, merges):
    """Adds a range. Mapped ranges of an expandable segment that touch are one."""
    if merges and addr + size in ranges:
        size += ranges.pop(addr + size)
    before = next((start for start, length in ranges.items() if start + length == addr), None) if merges else None
    if before is None:
        ranges[addr] = size
    else:
        ranges[before] += size


class FreeSpace:
    """Free ranges of reserved memory. Ranges of different segments never merge."""

    def __init__(self, ranges, blocks):
        self.starts = []  # sorted
        self.sizes = {}
        self.edges = set()  # where a segment begins: no merging across
        for addr, size in ranges.items():
            self.add(addr, size, False)
        for block in blocks.values():
            self.take(block.addr, block.size)

    def add(self, addr, size, merges):
        if not merges:
            self.edges |= {addr, addr + size}
        else:
            self.edges -= {addr, addr + size}
        self.give(addr, size)

    def remove(self, addr, size):
        """A later segment at these addresses may be larger, so its edges are gone too."""
        self.take(addr, size)
        self.edges -= {addr, addr + size}

    def free_at(self, addr, default):
        return max(self.sizes.get(addr, default), default)

    def take(self, addr, size):
        index = bisect_right(self.starts, addr) - 1
        if index < 0:
            return
        start = self.starts[index]
        end = start + self.sizes[start]
        if addr >= end:
            return
        self._remove(index)
        if addr > start:
            self._insert(start, addr - start)
        if addr + size < end:
            self._insert(addr + size, end - addr - size)

    def give(self, addr, size):
        index = bisect_right(self.starts, addr + size - 1)
        if index < len(self.starts) and self.starts[index] == addr + size and addr + size not in self.edges:
            size += self.sizes[addr + size]
            self._remove(index)
        index = bisect_right(self.starts, addr) - 1
        if index >= 0 and self.starts[index] + self.sizes[self.starts[index]] == addr and addr not in self.edges:
            addr, size = self.starts[index], size + self.sizes[self.starts[index]]
            self._remove(index)
        self._insert(addr, size)

    def _remove(self, index):
        del self.sizes[self.starts.pop(index)]

    def _insert(self, addr, size):
        insort(self.starts, addr)
        self.sizes[addr] = size


def devices(snapshot):
    """The history of each device that has segments or events."""
    traces = snapshot.get("device_traces") or []
    expandable = any(segment.get("is_expandable") for segment in snapshot["segments"])
    expandable |= any(event["action"] == "segment_map" for trace in traces for event in trace)
    rounding = Rounding(snapshot.get("allocator_settings"), expandable)
    found = {segment["device"] for segment in snapshot["segments"]} | {n for n, trace in enumerate(traces) if trace}
    return {
        device: DeviceHistory(
            device,
            [segment for segment in snapshot["segments"] if segment["device"] == device],
            traces[device] if device < len(traces) else [],
            rounding,
        )
        for device in sorted(found)
    }
