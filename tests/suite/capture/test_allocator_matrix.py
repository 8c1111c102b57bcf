"""Compares the trace, entry by entry, with the history that PyTorch's allocator keeps and the
driver's log.

A cell of the matrix is a PyTorch version, an allocator setup, and a workload
(tests/workloads/training/allocator_matrix.py). In each cell the trace must have, per device, the
entries of `_snapshot()['device_traces']` (action, address, size, stream, and pool where PyTorch
reports it) and, per thread, every memory call of the driver's log. The model of the allocator must
reserve the same bytes at each entry. This suite runs some cells; scripts/checks/matrix runs all.
"""

import collections
import itertools
import json
import os

import pytest

from conftest import driver_calls, gpumemtrace
from whatif_runs import assert_model_reproduces

CONFIGURATIONS = {
    "native": {},
    "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "cudaMallocAsync": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    "no caching": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
}
ROWS = {
    "mlp": {},
    "resnet18": {},
    "transformer": {},
    "pools": {"SIMGPU_EVENT_DELAY_US": "3000"},
    "graph": {},
    "oom": {"SIMGPU_MEM": "256M"},
    "devices": {"SIMGPU_DEVICES": "2"},
    "pinned": {},
}
ALL = list(itertools.product(CONFIGURATIONS, ROWS))
PART = [("native", row) for row in ROWS if row not in ("mlp", "resnet18")]
PART += [("expandable", row) for row in ("pools", "graph", "oom")]
PART += [("cudaMallocAsync", "mlp"), ("cudaMallocAsync", "oom"), ("no caching", "mlp"), ("no caching", "oom")]
CELLS = ALL if os.environ.get("GPUMEMTRACE_MATRIX") == "all" else PART

#: States of the tracker, as in a `tracker` event.
ATTACHED, NO_TRACKER, OTHER_ALLOCATOR, CACHE_OFF = 1, 3, 5, 6
#: The pool, where PyTorch's version does not report it.
NO_POOL = (1 << 64) - 1
#: Names in PyTorch's history for events of its allocator.
ACTIONS = {
    "block_alloc": "alloc", "block_free": "free_requested", "block_free_completed": "free_completed", "oom": "oom",
    "segment_alloc": "segment_alloc", "segment_free": "segment_free", "segment_map": "segment_map",
    "segment_unmap": "segment_unmap", "torch_annotate": "annotate",
}


def history_of(events, device):
    """Returns the entries of one device up to its snapshot, with None for unknown fields."""
    entries = []
    for event in events:
        if event["kind"] == "torch_snapshot":
            break
        if event["dev"] != str(device) or event["kind"] not in ACTIONS:
            continue
        action = ACTIONS[event["kind"]]
        if action in ("alloc", "free_requested", "oom"):
            size, stream, pool = (int(event[name], 0) if name in event else None for name in ("requested", "stream", "pool"))
            addr = event["addr"] if size is not None or action != "oom" else None
        else:
            size, stream, pool, addr = event["size"], event["aux0"], event["aux1"], event["addr"]
        pool = None if pool in (None, NO_POOL) else [pool >> 32, pool & 0xFFFF_FFFF]
        entries.append([action, addr, size, stream, pool])
        if event.get("completed"):
            entries.append(["free_completed", addr, size, stream, pool])
    return entries


def calls_by_thread(calls, apis):
    """Returns per thread: arguments and results of the driver calls."""
    threads = collections.defaultdict(list)
    for call in calls:
        if call["api"] in apis:
            # A free has no size argument; the log has the size all the same.
            size = call["size"] if "Free" not in call["api"] and "Release" not in call["api"] else None
            threads[call["tid"]].append((call["api"], call["addr"] if call["rc"] == 0 else None, size, call["rc"]))
    return dict(threads)


def assert_equal_lists(ours, theirs, what):
    assert len(ours) == len(theirs), f"{what}: {len(ours)} in the trace, {len(theirs)} at the witness"
    for number, (our, their) in enumerate(zip(ours, theirs)):
        assert our == their, f"{what} {number}: {our} in the trace, {their} at the witness"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("configuration,row", CELLS, ids=lambda value: value.replace(" ", "_"))
def test_trace_equals_history_and_driver_log(run_python, torch_version, configuration, row, tmp_path, record_property):
    is_cached = configuration in ("native", "expandable")
    has_tracker = not torch_version.startswith("2.1.")
    env = CONFIGURATIONS[configuration] | ROWS[row]
    run = run_python(torch_version, "training/allocator_matrix.py", row, "--history", tmp_path / "history.json", check=False, **env)
    if run.process.returncode != 0:
        # PyTorch 2.15.0 sometimes aborts at exit, also untraced. The trace must be complete anyway.
        aborted = (-6, "terminate called without an active exception")
        assert torch_version == "2.15.0" and (run.process.returncode, run.process.stderr.splitlines()[-1]) == aborted, run.process
    events = run.events()

    states = [event["aux0"] for event in events if event["kind"] == "tracker"]
    native = ATTACHED if has_tracker else NO_TRACKER
    assert states == [{"cudaMallocAsync": OTHER_ALLOCATOR, "no caching": CACHE_OFF}.get(configuration, native)]
    says_so = "has no allocator tracker" in run.process.stderr
    assert says_so == (is_cached and not has_tracker), run.process.stderr
    report = run.report()["traces"][0]
    assert report["losses"]["tracker_mismatches"] == 0 and report["complete"]

    compared = 0
    for device, theirs in enumerate(json.loads((tmp_path / "history.json").read_text())):
        ours = history_of(events, device)
        if not has_tracker:
            # The profiler hook has rounded sizes, no stream, and only requests and frees.
            theirs = [[action, addr if action != "oom" else None, None, None, None]
                      for action, addr, *_ in theirs if action in ("alloc", "free_requested", "oom")]
            ours = ours[:len(theirs)]
        # PyTorch's history learns the pool later than its trackers do.
        ours = [our[:4] + [our[4] if their[4] is not None else None] for our, their in zip(ours, theirs)] + ours[len(theirs):]
        assert_equal_lists(ours, theirs, f"entry of device {device}")
        compared += len(theirs)
        if theirs and has_tracker:
            assert_model_reproduces(run.trace, device, ran_out=row == "oom")
    assert (compared > 0) == is_cached

    apis = gpumemtrace("dump", run.trace).split("# meta apis=\"", 1)[1].split("\"", 1)[0].split()
    ours = calls_by_thread(driver_calls(events), apis)
    theirs = calls_by_thread(run.calls(), apis)
    assert ours.keys() == theirs.keys()
    for thread, calls in theirs.items():
        assert_equal_lists(ours[thread], calls, f"call of thread {thread}")
    record_property("entries", compared)
    record_property("calls", sum(map(len, theirs.values())))
