#!/usr/bin/env python3
"""Replays a ground-truth log (SIMGPU_LOG) and checks its consistency.

Tracers are compared with the log. Every `used=` must follow from the calls before it, live blocks
must not overlap, frees must name live blocks, and virtual memory must stay until its last reference
and mapping.

usage: check_log.py [--capacity BYTES] LOG...      exit status: 0 consistent, 1 not, 2 unreadable
"""

import argparse
import bisect
import sys
from collections import Counter

MIB = 1 << 20
DIRECT = {"cuMemAlloc_v2", "cuMemAlloc_v3", "cuMemAllocPitch_v2"}
ARRAYS = {"cuArrayCreate_v2", "cuArray3DCreate_v2", "cuMipmappedArrayCreate"}
ASYNC = {"cuMemAllocAsync", "cuMemAllocAsync_ptsz", "cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync_ptsz"}
FOREIGN = {"cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2", "cuMemPoolImportPointer", "cuExternalMemoryGetMappedBuffer",
           "cuExternalMemoryGetMappedMipmappedArray"}
FREES = {"cuMemFree_v2", "cuMemFreeAsync", "cuMemFreeAsync_ptsz", "cuArrayDestroy", "cuMipmappedArrayDestroy", "cuIpcCloseMemHandle"}
HOST = {"cuMemHostAlloc", "cuMemAllocHost_v2"}
CONTEXTS = {"cuCtxCreate", "cuCtxCreate_v2", "cuCtxCreate_v3", "cuCtxCreate_v4", "cuCtxDestroy", "cuCtxDestroy_v2",
            "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxReset",
            "cuDevicePrimaryCtxReset_v2", "cuGreenCtxCreate", "cuGreenCtxDestroy"}
GRAPH_NODES = {"cuGraphAddMemAllocNode", "cuGraphAddNode", "cuGraphAddNode_v2", "cuGraphAddNode_v3"}
MAY_GIVE_BACK = {"cuMemPoolTrimTo", "cuMemPoolDestroy", "cuDeviceGraphMemTrim", "cuGraphDestroy", "cuGraphExecDestroy"}


def span(size):
    step = 2 * MIB if size >= MIB else 64 * 1024
    return -(-size // step) * step


class Line:
    """One line, with its fields by name."""

    def __init__(self, text):
        fields = text.split()
        self.seq, self.pid, self.tid = (int(field) for field in fields[:3])
        self.api, self.dev = fields[3], int(fields[4])
        self.addr, self.size, self.stream = int(fields[5], 16), int(fields[6]), int(fields[7], 16)
        self.rc = int(fields[8])
        pairs = [field.split("=", 1) for field in fields[9:]]
        self.keys = dict(pairs)
        self.pairs = pairs
        self.ns, self.used, self.slack = (int(self.keys[key]) for key in ("ns", "used", "slack"))

    def number(self, key, default=0):
        return int(self.keys.get(key, default), 0) if key in self.keys else default


class Ranges:
    """Address ranges that must not overlap."""

    def __init__(self):
        self.starts, self.ends = [], {}

    def add(self, start, end):
        at = bisect.bisect_left(self.starts, end)
        if at and self.ends[self.starts[at - 1]] > start:
            return False
        bisect.insort(self.starts, start)
        self.ends[start] = end
        return True

    def remove(self, start):
        if start not in self.ends:
            return False
        del self.ends[start]
        del self.starts[bisect.bisect_left(self.starts, start)]
        return True


class Replay:
    """The state of one process, according to its log."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.errors = []
        self.last_seq = 0
        self.last_ns = 0
        self.blocks = {}  # addr -> (dev, charged bytes, kind)
        self.live = Ranges()
        self.handles = {}  # handle -> [dev, size, references, mappings]
        self.mappings = {}  # addr -> (size, handle)
        self.mapped = Ranges()
        self.reserved = {}  # addr -> size
        self.reservations = Ranges()
        self.host = Ranges()
        self.graph = {}  # addr -> size of a captured or added allocation node
        self.asked = Counter()  # dev -> bytes that live allocations requested, without graphs
        self.used = {}  # dev -> the last used=
        self.unsure = set()  # devices that a call logged for another device may have changed
        self.calls = Counter()
        self.failures = 0

    def fail(self, line, text):
        self.errors.append(f"line {line.seq} ({line.api}): {text}")

    def feed(self, line):
        if line.seq != self.last_seq + 1:
            self.fail(line, f"sequence jumps from {self.last_seq}")
        if line.ns < self.last_ns:
            self.fail(line, "time runs backwards")
        self.last_seq, self.last_ns = line.seq, line.ns
        self.calls[line.api] += 1
        if line.rc != 0:
            self.failures += 1
        before = self.used.get(line.dev, 0)
        exact = self.charge_of(line) if line.rc == 0 else 0
        if line.dev >= 0:
            self.check_used(line, before, exact)

    def check_used(self, line, before, exact):
        change = line.used - before
        self.used[line.dev] = line.used
        if line.used - line.slack != self.asked[line.dev] and not self.graph:
            self.fail(line, f"used {line.used} without slack {line.slack} is not the {self.asked[line.dev]} that was asked for")
        if self.capacity and line.used > self.capacity:
            self.fail(line, f"used {line.used} is above the capacity")
        # Pools take and release chunks at any allocation: with `None` only the direction is known.
        # A graph's nodes may lie on several devices, and a context frees its blocks when it ends.
        if exact is None and (self.graph or line.api in CONTEXTS):
            self.unsure |= set(self.used) - {line.dev}
        if exact is None or line.dev in self.unsure:
            self.unsure.discard(line.dev)
            return
        if change != exact and not (change < exact and self.pools_in_use()):
            self.fail(line, f"used changed by {change}, expected {exact}")

    def pools_in_use(self):
        return any(api in self.calls for api in ASYNC | GRAPH_NODES)

    def charge_of(self, line):
        """Applies a successful call; returns the change of `used=`, or None inside pools."""
        api = line.api
        if api in DIRECT:
            return self.allocate(line, span(line.size), "direct")
        if api in ARRAYS:
            return self.allocate(line, 0 if line.number("unbacked") else span(line.size), "direct")
        if api in FOREIGN:
            return 0 if line.number("again") else self.allocate(line, 0, "foreign")
        if api == "cuMemAllocManaged":
            return self.allocate(line, 0, "managed")
        if api in ASYNC:
            if line.number("captured"):
                self.graph[line.addr] = line.size
                return 0
            self.allocate(line, 0, "pool")
            return None
        if api in FREES:
            return self.free(line)
        if api in GRAPH_NODES:
            if line.size:
                self.graph[line.addr] = line.size
            return 0
        if api in ("cuGraphLaunch", "cuGraphLaunch_ptsz"):
            return self.launch(line)
        if api == "cuMemImportFromShareableHandle" and line.number("handle") in self.handles:
            self.handles[line.number("handle")][2] += 1
            return 0
        if api in ("cuMemCreate", "cuMulticastCreate", "cuMemImportFromShareableHandle"):
            handle = line.number("handle")
            if handle in self.handles:
                self.fail(line, "handle is live already")
            self.handles[handle] = [line.dev, line.size, 1, 0]
            self.asked[line.dev] += line.size
            return line.size if line.dev >= 0 else 0
        if api == "cuMemRelease":
            return -self.drop(line, line.number("handle"), reference=True)
        if api == "cuMemRetainAllocationHandle":
            self.handles[line.number("handle")][2] += 1
            return 0
        if api == "cuMemAddressReserve":
            if not self.reservations.add(line.addr, line.addr + line.size):
                self.fail(line, "reservation overlaps another")
            self.reserved[line.addr] = line.size
            return 0
        if api == "cuMemAddressFree":
            if self.reserved.pop(line.addr, None) != line.size or not self.reservations.remove(line.addr):
                self.fail(line, "no such reservation")
            return 0
        if api == "cuMemMap":
            handle = line.number("handle")
            if handle not in self.handles:
                self.fail(line, "unknown handle")
                return 0
            if not self.mapped.add(line.addr, line.addr + line.size):
                self.fail(line, "mapping overlaps another")
            self.handles[handle][3] += 1
            self.mappings[line.addr] = (line.size, handle)
            return 0
        if api == "cuMemUnmap":
            return self.unmap(line)
        if api in HOST:
            if not self.host.add(line.addr, line.addr + line.size):
                self.fail(line, "pinned block overlaps another")
            return 0
        if api == "cuMemFreeHost":
            if line.addr and not self.host.remove(line.addr):
                self.fail(line, "no such pinned block")
            return 0
        if api in CONTEXTS:
            return self.context(line)
        return None if api in MAY_GIVE_BACK else 0

    def allocate(self, line, charge, kind):
        if line.size == 0 or line.addr == 0:
            self.fail(line, "an allocation without size or address succeeded")
        if not self.live.add(line.addr, line.addr + line.size):
            self.fail(line, f"block {line.addr:#x} overlaps a live one")
        self.blocks[line.addr] = (line.dev, charge, kind, line.size)
        if charge or kind == "pool":
            self.asked[line.dev] += line.size
        return charge

    def forget(self, addr):
        dev, charge, kind, size = self.blocks.pop(addr)
        self.live.remove(addr)
        if charge or kind == "pool":
            self.asked[dev] -= size
        return dev, charge, kind, size

    def free(self, line):
        if line.addr == 0 or line.number("captured") or line.number("again"):
            return 0
        if line.addr not in self.blocks:
            self.fail(line, f"{line.addr:#x} is not live")
            return None
        dev, charge, kind, size = self.forget(line.addr)
        if size != line.size:
            self.fail(line, f"freed {line.size} bytes of a block of {size}")
        if dev not in (line.dev, None):
            self.fail(line, f"freed on device {line.dev}, allocated on {dev}")
        return None if kind in ("pool", "graph") else -charge

    def launch(self, line):
        for key, value in line.pairs:
            if key == "alloc":
                addr, size, *_ = value.split(":")
                addr, size = int(addr, 16), int(size)
                if self.graph.get(addr) != size:
                    self.fail(line, f"{addr:#x} is no allocation node of {size} bytes")
                if not self.live.add(addr, addr + size):
                    self.fail(line, f"graph block {addr:#x} overlaps a live one")
                self.blocks[addr] = (None, 0, "graph", size)
            elif key == "free":
                addr = int(value, 16)
                if addr in self.blocks:
                    self.forget(addr)
                else:
                    self.fail(line, f"the graph frees {addr:#x}, which is not live")
        return None

    def drop(self, line, handle, reference):
        if handle not in self.handles:
            self.fail(line, f"unknown handle {handle:#x}")
            return 0
        entry = self.handles[handle]
        entry[2 if reference else 3] -= 1
        if entry[2] > 0 or entry[3] > 0:
            return 0
        del self.handles[handle]
        self.asked[entry[0]] -= entry[1]
        return entry[1] if entry[0] >= 0 else 0

    def unmap(self, line):
        freed, at = 0, line.addr
        while at < line.addr + line.size:
            if at not in self.mappings:
                self.fail(line, f"nothing is mapped at {at:#x}")
                break
            size, handle = self.mappings.pop(at)
            self.mapped.remove(at)
            freed += self.drop(line, handle, reference=False)
            at += size
        if freed != line.number("freed"):
            self.fail(line, f"freed={line.number('freed')}, expected {freed}")
        return -freed

    def context(self, line):
        for key, value in line.pairs:
            if key == "freed" and self.host.remove(int(value, 16)):
                continue
            if key == "freed" and self.blocks.get(int(value, 16), (None,))[0] == line.dev:
                self.forget(int(value, 16))
            elif key == "freed":
                self.fail(line, f"the context frees {value}, which is not live")
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--capacity", type=int, default=0, help="bytes of each device")
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("logs", nargs="+")
    options = parser.parse_args()
    status = 0
    for path in options.logs:
        processes = {}
        try:
            with open(path, encoding="ascii") as file:
                for text in file:
                    line = Line(text)
                    processes.setdefault(line.pid, Replay(options.capacity)).feed(line)
        except (OSError, ValueError, KeyError, IndexError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 2
        for pid, replay in processes.items():
            for error in replay.errors[:20]:
                print(f"{path}: process {pid}: {error}", file=sys.stderr)
            status |= bool(replay.errors)
            if not options.quiet:
                calls = sum(replay.calls.values())
                print(f"{path}: process {pid}: {calls} calls, {replay.failures} failed, {len(replay.blocks)} blocks and "
                      f"{len(replay.handles)} handles live at the end, {len(replay.errors)} errors")
        if not processes:
            print(f"{path}: empty", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
