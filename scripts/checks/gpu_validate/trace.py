"""Reads a trace through `gpumemtrace dump`, and compares its blocks with PyTorch's statistics."""

import json
import os
import subprocess

from .verdicts import Different, assert_equal


class Trace:
    """A trace, as `gpumemtrace dump` prints it."""

    def __init__(self, command, path):
        self.command, self.path, self.size = command, path, path.stat().st_size
        done = subprocess.run([str(command), "dump", "--stacks", str(path)], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, universal_newlines=True, errors="replace", timeout=300)
        self.code, self.events, self.incomplete, self.meta, self.native, self.end = done.returncode, [], [], {}, {}, ""
        if done.returncode not in (0, 6):
            raise Different("gpumemtrace dump ends with %d: %s" % (done.returncode, done.stderr.strip()[-300:]))
        for line in done.stdout.splitlines():
            if line.startswith("seq="):
                event = dict(part.split("=", 1) for part in line.split() if "=" in part)
                for name in ("time_ns", "tid", "addr", "size", "aux0", "aux1", "rc", "native", "requested"):
                    if name in event:
                        event[name] = int(event[name], 0)
                event["in_flight"] = line.endswith(" in_flight")
                self.events.append(event)
            elif line.startswith("# meta "):
                name, _, value = line[7:].partition("=")
                self.meta[name] = value.strip('"')
            elif line.startswith("# incomplete "):
                self.incomplete.append(line[13:])
            elif line.startswith("# end "):
                self.end = line[6:].split()[0]
            elif line.startswith("native "):
                frame = dict(part.split("=", 1) for part in line.split()[1:])
                self.native[int(frame["id"])] = (int(frame["parent"]), os.path.basename(frame["module"]))
        self.blocks = [event for event in self.events if event["kind"] in ("block_alloc", "block_free") and not event["in_flight"]]

    def report(self):
        done = subprocess.run([str(self.command), "replay", "--json", str(self.path)], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, universal_newlines=True, timeout=300)
        if done.returncode not in (0, 6):
            raise Different("gpumemtrace replay ends with %d: %s" % (done.returncode, done.stderr.strip()[-300:]))
        return json.loads(done.stdout)

    def owner(self, event):
        """Returns the innermost module of a call's stack that is not libcuda, libcudart or ours."""
        node = event["native"]
        while node in self.native:
            node, module = self.native[node]
            if not module.startswith(("libgpumemtrace", "libcuda.", "libcudart")):
                return module
        return "?"

    def driver_bytes(self):
        """Yields (time, bytes allocated from the driver) after each event, without pools. Memory of
        cuMemCreate is freed after its release and its last unmap."""
        live, total, handles, mapped = {}, 0, {}, {}
        for event in self.events:
            kind, addr = event["kind"], event["addr"]
            if event["rc"] != 0 or event["in_flight"]:
                continue
            if kind == "device_alloc":
                live[addr] = event["size"]
                total += event["size"]
            elif kind == "device_free":
                total -= live.pop(addr, 0)
            elif kind == "phys_create":
                handles[event["aux0"]] = {"size": event["size"], "uses": 1}
                total += event["size"]
            elif kind == "map" and event["aux0"] in handles:
                mapped[addr] = handles[event["aux0"]]
                mapped[addr]["uses"] += 1
            else:
                ended = [handles.pop(event["aux0"], None)] if kind == "phys_release" else []
                if kind == "unmap":
                    ended = [mapped.pop(at) for at in list(mapped) if addr <= at < addr + event["size"]]
                for handle in filter(None, ended):
                    handle["uses"] -= 1
                    total -= 0 if handle["uses"] else handle["size"]
            yield event["time_ns"], total

    def driver_bytes_at(self, times):
        """Returns the bytes at each of the given times, which must be ascending."""
        values, series, current = [], self.driver_bytes(), 0
        following = next(series, None)
        for moment in times:
            while following and following[0] <= moment:
                current, following = following[1], next(series, None)
            values.append(current)
        return values


def assert_equals_stats(trace, stats, where):
    """Compares sums over as many block events as PyTorch counted; returns their number."""
    allocated, freed = stats["allocation.all.allocated"], stats["allocation.all.freed"]
    if len(trace.blocks) < allocated + freed:
        raise Different("%s: the trace has %d block events, PyTorch counted %d" % (where, len(trace.blocks), allocated + freed))
    head = trace.blocks[:allocated + freed]
    allocations = [event["size"] for event in head if event["kind"] == "block_alloc"]
    frees = [event["size"] for event in head if event["kind"] == "block_free"]
    assert_equal(where + ": allocations", len(allocations), allocated)
    assert_equal(where + ": bytes allocated", sum(allocations), stats["allocated_bytes.all.allocated"])
    assert_equal(where + ": bytes freed", sum(frees), stats["allocated_bytes.all.freed"])
    assert_equal(where + ": live bytes", sum(allocations) - sum(frees), stats["allocated_bytes.all.current"])
    return len(head)


def assert_running_totals(trace):
    total = 0
    for event in trace.blocks:
        total += event["size"] if event["kind"] == "block_alloc" else -event["size"]
        assert_equal("running total at seq %s" % event["seq"], total, event["aux0"])


def assert_equals_segments(trace, segments, count):
    """Compares the live blocks after `count` block events with PyTorch's snapshot."""
    live = {}
    for event in trace.blocks[:count]:
        if event["kind"] == "block_alloc":
            live[event["addr"]] = event["size"]
        else:
            assert_equal("free of a live block at seq %s" % event["seq"], event["addr"] in live, True)
            del live[event["addr"]]
    theirs = {address: size for segment in segments for address, size in segment["blocks"]}
    for address in sorted(set(live) | set(theirs)):
        assert_equal("live block %#x" % address, live.get(address), theirs.get(address))
    return len(theirs)
