"""Compares traces with two oracles: PyTorch's statistics and the simulated driver's log."""

import itertools
import json

import pytest

from ground_truth import assert_blocks_equal_torch, assert_calls_equal_driver, assert_held_equals_driver

CONFIGURATIONS = list(itertools.product(["mlp", "resnet18", "transformer"], ["fp32", "amp"], ["native", "expandable"]))

@pytest.mark.sampled(2)
@pytest.mark.parametrize("model,precision,segments", CONFIGURATIONS, ids=lambda value: value)
def test_training_is_recorded_to_the_byte(run_python, torch_version, model, precision, segments, tmp_path):
    conf = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if segments == "expandable" else {}
    amp = ["--amp"] if precision == "amp" else []
    run = run_python(torch_version, "training/train.py", "--model", model, *amp, "--stats", tmp_path / "stats.json", **conf)
    events = run.events()
    stats = json.loads((tmp_path / "stats.json").read_text())
    assert_blocks_equal_torch(events, stats)
    assert_calls_equal_driver(events, run.calls())
    assert_held_equals_driver(run.trace, run.calls())


@pytest.mark.parametrize("graphed", [False, True], ids=["eager", "graphed"])
def test_driver_pool_is_recorded_to_the_byte(run_python, torch_version, graphed):
    """Covers stream-ordered memory, and its graph nodes when a stream is captured."""
    conf = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
    run = run_python(torch_version, "memory/async_allocator.py", *(["--graph"] if graphed else []), **conf)
    events, calls = run.events(), run.calls()
    assert_calls_equal_driver(events, calls)
    assert_held_equals_driver(run.trace, calls)
    kinds = {event["kind"] for event in events}
    assert "async_alloc" in kinds and ("graph_alloc_node" in kinds) == graphed, kinds
    assert run.report()["traces"][0]["losses"]["uncovered_calls"] == 0


def test_quick_exit_keeps_torch_counts(run_python, torch_version, tmp_path):
    run = run_python(torch_version, "training/train.py", "--quick-exit", "--stats", tmp_path / "stats.json")
    events = run.events()
    stats = json.loads((tmp_path / "stats.json").read_text())
    assert_blocks_equal_torch(events, stats)
    frees = [event for event in events if event["kind"] == "block_free"]
    assert len(frees) == stats["allocation.all.freed"]
    assert_calls_equal_driver(events, run.calls())
    assert run.report()["traces"][0]["end"] == "exit"


@pytest.mark.parametrize("segments", ["native", "expandable"])
def test_functions_at_other_addresses_are_recorded(run_python, torch_version, segments, tmp_path):
    """cuGetProcAddress may return other addresses than the driver's exports."""
    conf = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if segments == "expandable" else {}
    run = run_python(torch_version, "training/train.py", "--stats", tmp_path / "stats.json", SIMGPU_ALT_PROCADDR=1, **conf)
    assert_calls_equal_driver(run.events(), run.calls())


def test_failed_call_is_recorded_and_retry_succeeds(run_python, torch_version, tmp_path):
    """PyTorch empties its cache and retries; the trace has the failure, the frees and the retry."""
    run = run_python(torch_version, "training/train.py", "--stats", tmp_path / "stats.json", SIMGPU_FAIL="cuMemAlloc_v2:3")
    events = run.events()
    assert [event["rc"] for event in events if event["api"] == "cuMemAlloc_v2" and event["rc"]] == [2]
    assert_blocks_equal_torch(events, json.loads((tmp_path / "stats.json").read_text()))
    assert_calls_equal_driver(events, run.calls())
    assert run.report()["devices"][0]["peak"]["device_bytes"] == max(int(call["used"]) for call in run.calls())


def test_report_peaks_equal_torch(run_python, torch_version, tmp_path):
    run = run_python(torch_version, "training/train.py", "--model", "resnet18", "--stats", tmp_path / "stats.json")
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
