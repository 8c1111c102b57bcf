"""The trace against two witnesses that know nothing of it: PyTorch's own statistics and the simulated driver's log."""

import itertools
import json

import pytest

from conftest import driver_calls, held_after_each_call

CONFIGURATIONS = list(itertools.product(["mlp", "resnet18", "transformer"], ["fp32", "amp"], ["native", "expandable"]))

#: Calls that the log has and the trace does not claim to have (yet), with the reason.
NOT_EVENTS = {
    "cuMemGetAllocationGranularity": "a question",
    "cuMemGetInfo_v2": "a question",
}


def block_events(events):
    return [event for event in events if event["kind"] in ("block_alloc", "block_free")]


def assert_blocks_equal_torch(events, stats):
    """Counts, bytes and running totals equal what the allocator says, up to the moment it said so."""
    blocks = block_events(events)
    allocations = [event for event in blocks if event["kind"] == "block_alloc"]
    frees = [event for event in blocks if event["kind"] == "block_free"]
    freed = stats["allocation.all.freed"]
    assert len(allocations) == stats["allocation.all.allocated"]
    assert sum(event["size"] for event in allocations) == stats["allocated_bytes.all.allocated"]
    assert len(frees) >= freed, "what the interpreter frees at its end comes on top"
    assert sum(event["size"] for event in frees[:freed]) == stats["allocated_bytes.all.freed"]
    total = 0
    for event in blocks:
        total += event["size"] if event["kind"] == "block_alloc" else -event["size"]
        assert event["aux0"] == total, f"running total differs at {event}"
    peak = max(event["aux0"] for event in blocks)
    assert peak == stats["allocated_bytes.all.peak"]


def assert_calls_equal_driver(events, calls):
    """Every memory call of the log is in the trace, with the same address and size, in the same order, and no other."""
    logged = [call for call in calls if call["api"] not in NOT_EVENTS]
    traced = driver_calls(events)
    assert [event["api"] for event in traced] == [call["api"] for call in logged]
    for event, call in zip(traced, logged):
        assert (event["rc"], event["tid"]) == (call["rc"], call["tid"]), f"{event} {call}"
        if call["rc"] == 0:
            assert event["addr"] == call["addr"], f"{event} {call}"
        # The pitch that a failed call would have got is not known.
        pitch_unknown = call["rc"] != 0 and call["api"] == "cuMemAllocPitch_v2"
        if event["size"] and not pitch_unknown:
            assert event["size"] == call["size"], f"{event} {call}"


def assert_held_equals_driver(trace, calls):
    """After every call, what replay says is held on the call's device is what the driver charged and somebody asked for."""
    logged = [call for call in calls if call["api"] not in NOT_EVENTS]
    held = held_after_each_call(trace)
    for call, places in zip(logged, held, strict=True):
        if call["dev"] != "-1":
            assert int(places.get(call["dev"], 0)) == int(call["used"]) - int(call["slack"]), f"{call} {places}"
    return held


@pytest.mark.parametrize("model,precision,segments", CONFIGURATIONS, ids=lambda value: value)
def test_a_training_is_recorded_to_the_byte(run_python, torch_version, model, precision, segments, tmp_path):
    conf = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if segments == "expandable" else {}
    amp = ["--amp"] if precision == "amp" else []
    run = run_python(torch_version, "train.py", "--model", model, *amp, "--stats", tmp_path / "stats.json", **conf)
    events = run.events()
    stats = json.loads((tmp_path / "stats.json").read_text())
    assert_blocks_equal_torch(events, stats)
    assert_calls_equal_driver(events, run.calls())
    assert_held_equals_driver(run.trace, run.calls())


@pytest.mark.parametrize("graphed", [False, True], ids=["eager", "graphed"])
def test_the_drivers_own_allocator_is_recorded_to_the_byte(run_python, torch_version, graphed):
    """Stream-ordered memory, and what of it becomes nodes of a graph when a stream is captured."""
    conf = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
    run = run_python(torch_version, "async.py", *(["--graph"] if graphed else []), **conf)
    events, calls = run.events(), run.calls()
    assert_calls_equal_driver(events, calls)
    assert_held_equals_driver(run.trace, calls)
    kinds = {event["kind"] for event in events}
    assert "async_alloc" in kinds and ("graph_alloc_node" in kinds) == graphed, kinds
    assert run.report()["traces"][0]["losses"]["uncovered_calls"] == 0


def test_a_quick_exit_leaves_exactly_what_torch_counted(run_python, torch_version, tmp_path):
    run = run_python(torch_version, "train.py", "--quick-exit", "--stats", tmp_path / "stats.json")
    events = run.events()
    stats = json.loads((tmp_path / "stats.json").read_text())
    assert_blocks_equal_torch(events, stats)
    frees = [event for event in events if event["kind"] == "block_free"]
    assert len(frees) == stats["allocation.all.freed"]
    assert_calls_equal_driver(events, run.calls())
    assert run.report()["traces"][0]["end"] == "exit"


@pytest.mark.parametrize("segments", ["native", "expandable"])
def test_functions_found_at_other_addresses_are_recorded_all_the_same(run_python, torch_version, segments, tmp_path):
    """cuGetProcAddress need not give the addresses that the driver exports."""
    conf = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if segments == "expandable" else {}
    run = run_python(torch_version, "train.py", "--stats", tmp_path / "stats.json", SIMGPU_ALT_PROCADDR=1, **conf)
    assert_calls_equal_driver(run.events(), run.calls())


def test_a_failed_call_is_an_event_and_moves_no_memory(run_python, torch_version, tmp_path):
    """PyTorch empties its cache and asks again; the trace has the failure, the frees and the second try."""
    run = run_python(torch_version, "train.py", "--stats", tmp_path / "stats.json", SIMGPU_FAIL="cuMemAlloc_v2:3")
    events = run.events()
    assert [event["rc"] for event in events if event["api"] == "cuMemAlloc_v2" and event["rc"]] == [2]
    assert_blocks_equal_torch(events, json.loads((tmp_path / "stats.json").read_text()))
    assert_calls_equal_driver(events, run.calls())
    assert run.report()["devices"][0]["peak"]["device_bytes"] == max(int(call["used"]) for call in run.calls())


def test_the_report_repeats_torchs_own_peaks(run_python, torch_version, tmp_path):
    run = run_python(torch_version, "train.py", "--model", "resnet18", "--stats", tmp_path / "stats.json")
    stats = json.loads((tmp_path / "stats.json").read_text())
    report = run.report()
    device = report["devices"][0]
    assert device["peak"]["live_bytes"] == stats["allocated_bytes.all.peak"]
    assert device["peak"]["reserved_bytes"] == stats["reserved_bytes.all.peak"]
    peak = report["peak"][0]
    assert peak["live_bytes"] == stats["allocated_bytes.all.peak"]
    assert sum(site["bytes"] for site in peak["sites"]) == peak["live_bytes"]
    used = max(int(call["used"]) for call in run.calls())
    assert device["peak"]["device_bytes"] == used
    for gap in report["fragmentation"]:
        assert sum(cause["bytes"] for cause in gap["causes"]) == gap["gap_bytes"]
    assert all(count == 0 for count in report["traces"][0]["losses"].values())
