"""Traces for the exports of stacks, and what these exports must hold.

Oracles are `replay --json` for whole runs, and a recount of `dump` for windows.
"""

import json
import subprocess
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import pytest

from conftest import COMMAND, VENVS, WORKLOADS, dump, gpumemtrace
from page_runs import LEAKING, record, record_ranks

#: Recordings by name; each returns the traces of a run in a new folder.
RECORDINGS = {
    "leak": lambda folder: [record(folder, *LEAKING, "--steps", 30)],
    "phases": lambda folder: [record(folder, "training/steps.py", "phases")],
    "oom": lambda folder: [record(folder, "memory/oom_growth.py", "validation", SIMGPU_MEM="2G")],
    "hostile": lambda folder: [record(folder, "stacks/hostile_names.py")],
    "ranks": record_ranks,
}
VALUES = ["peak", "end", "allocated", "leaked"]


@dataclass
class StackRun:
    """Traces of a run, exported into their folder."""

    traces: list

    @cached_property
    def report(self):
        return replay_json(self.traces)

    def export(self, form, *flags, notes=None):
        """Writes an export and returns its path. `notes` is what stderr must hold, if anything."""
        path = self.traces[0].parent / f"export.{form}"
        command = [COMMAND, "export", form, *self.traces, "--output", path, *map(str, flags)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        assert (notes in done.stderr) if notes else not done.stderr, done.stderr
        return path

    @cached_property
    def totals(self):
        """Returns bytes and blocks by value, of each device in the order of traces and ordinals."""
        rows = []
        for trace, path in enumerate(self.traces):
            # Each trace alone: sites of several ranks are shortened.
            report = replay_json([path])
            for device in report["devices"]:
                peak = next(peak for peak in report["peak"] if peak["device"] == device["device"])
                leaks = [leak for leak in report["leaks"] if leak["device"] == device["device"] and leak["kind"] in ("tensors", "device")]
                allocated = [event["size"] for event in dump(path) if event["kind"] == "block_alloc" and int(event["dev"]) == device["device"]]
                rows.append({
                    "peak": (peak["live_bytes"], sum(site["blocks"] for site in peak["sites"])),
                    "end": (device["end"]["live_bytes"], None),
                    "allocated": (sum(allocated), len(allocated)),
                    "leaked": (sum(leak["bytes"] for leak in leaks), sum(leak["blocks"] for leak in leaks)),
                })
        return rows

    def total(self, value):
        """Returns the bytes of a value on all devices."""
        return sum(row[value][0] for row in self.totals)


def replay_json(traces):
    return json.loads(gpumemtrace("replay", *traces, "--json"))


class Recount:
    """PyTorch's blocks of a trace with one device, counted from `dump`.

    Times are since the start of recording, which is found by the report's peak.
    """

    def __init__(self, trace, report):
        self.events = [event for event in dump(trace) if event["kind"] in ("block_alloc", "block_free")]
        live, total, peak, peak_at = {}, 0, 0, 0
        for event in self.events:
            total += event["size"] if event["kind"] == "block_alloc" else -live.pop(event["addr"], 0)
            if event["kind"] == "block_alloc":
                live[event["addr"]] = event["size"]
            if total > peak:
                peak, peak_at = total, int(event["time_ns"])
        assert peak == report["peak"][0]["live_bytes"]
        start_ns = peak_at - report["peak"][0]["time_ns"]
        for event in self.events:
            event["time_ns"] = int(event["time_ns"]) - start_ns

    def time_at(self, share):
        """Returns the time of the event at a share of all events."""
        return self.events[int(share * (len(self.events) - 1))]["time_ns"]

    def window(self, since_ns, until_ns):
        """Returns the values of the events after one time and up to another."""
        live, peak, allocated = {}, None, 0
        for event in self.events:
            if event["time_ns"] > until_ns:
                break
            if event["time_ns"] > since_ns and peak is None:
                peak = sum(live.values())
            if event["kind"] == "block_free":
                live.pop(event["addr"], None)
                continue
            live[event["addr"]] = event["size"]
            if peak is not None:
                allocated += event["size"]
                peak = max(peak, sum(live.values()))
        return {"peak": peak or 0, "end": sum(live.values()), "allocated": allocated}


def deepest_user_lines(stacks):
    """Sums bytes by the deepest line of a workload; `stacks` are (frames as (file, line), bytes)."""
    lines = Counter()
    for frames, bytes_ in stacks:
        lines[next((place for place in reversed(frames) if is_workload(place[0])), None)] += bytes_
    return lines


def peak_lines(report):
    """Sums the bytes of the report's peak by line of a workload; None for all other sites."""
    lines = Counter()
    for share in report["peak"][0]["sites"]:
        file, line = share["site"]["file"], share["site"]["line"]
        lines[(file, line) if is_workload(file) else None] += share["bytes"]
    return lines


def is_workload(file):
    return file is not None and file.startswith(str(WORKLOADS))


@pytest.fixture(scope="session")
def stack_run(tmp_path_factory):
    """Records a run by name, once."""
    if not VENVS:
        raise pytest.UsageError("GPUMEMTRACE_VENVS is not set: run scripts/test, which makes the environments")
    runs = {}

    def make(name):
        if name not in runs:
            runs[name] = StackRun(RECORDINGS[name](tmp_path_factory.mktemp(name)))
        return runs[name]

    return make

