"""Out-of-memory errors of real PyTorch: the numbers are PyTorch's, and suggested remedies work."""

import json
from pathlib import Path

import pytest

from conftest import WORKLOADS, gpumemtrace

MIB = 1 << 20
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def line_of(mark):
    lines = (WORKLOADS / "memory/oom.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# line: {mark}"))


@pytest.fixture
def run_out(run_python, torch_version, tmp_path):
    """Runs out of memory; returns the report's events and PyTorch's numbers."""

    def run(reason, *flags, **extra):
        name = "-".join([reason, *flags, *extra])
        traced = run_python(torch_version, "memory/oom.py", reason, tmp_path / f"{name}.json", *flags, name=name,
                            SIMGPU_MEM="512M", **extra)
        report = traced.report("--oom", "--fragmentation", "--leaks")
        return traced, report, json.loads((tmp_path / f"{name}.json").read_text())

    return run


def only(report, seen, reason):
    """Returns the single event after comparing it with PyTorch's numbers at the error."""
    [oom] = report["oom"]
    assert (Path(oom["site"]["file"]).name, oom["site"]["line"]) == ("oom.py", line_of(reason))
    assert oom["live_bytes"] == seen["allocated"] == sum(site["bytes"] for site in oom["sites"])
    assert oom["reserved_bytes"] == seen["reserved"]
    assert oom["device_free_bytes"] >= seen["free_at_driver"]
    assert oom["largest_free_block_bytes"] == seen["largest_free"].get("0 (0, 0) large", 0)
    assert sum(cause["bytes"] for cause in oom["unused_causes"]) == oom["reserved_bytes"] - seen["allocated"] + rounding(oom)
    return oom


def rounding(oom):
    """Returns the rounding, which is part of the blocks."""
    return sum(cause["bytes"] for cause in oom["unused_causes"] if cause["cause"] == "rounding")


def remedy(oom, *words):
    found = [one for one in oom["remedies"] if all(word in one["action"] for word in words)]
    return found[0]["works"] if found else "not named"


def unused(oom):
    return {cause["cause"]: cause["bytes"] for cause in oom["unused_causes"]}


def test_oom_by_leak_and_not_without_it(run_out):
    traced, report, seen = run_out("leak")
    oom = only(report, seen, "leak" if report["oom"][0]["requested_bytes"] == 12 * MIB else "work")
    [grown] = oom["growth"]
    assert grown["site"]["line"] == line_of("leak")
    assert grown["bytes"] == report["leaks"][0]["bytes"]
    assert remedy(oom, "free what", f"oom.py:{line_of('leak')}") is True
    assert remedy(oom, "expandable_segments") is False
    assert run_out("leak", **EXPANDABLE)[2] is not None
    assert run_out("leak", "--remedied")[2] is None
    assert "helps  free what" in gpumemtrace("replay", traced.trace, "--oom")


def test_oom_by_fragmentation_suggests_expandable_segments(run_out):
    traced, report, seen = run_out("pieces")
    oom = only(report, seen, "pieces")
    assert oom["requested_bytes"] == 100 * MIB <= seen["reserved"] - seen["allocated"]
    assert unused(oom)["pinned"] == seen["reserved"] - seen["allocated"]
    assert oom["cause"] == "no_fitting_block" and "No free block fits" in oom["why"]
    # Bytes alone do not prove it; in this run it does help.
    assert remedy(oom, "expandable_segments") is None
    assert run_out("pieces", **EXPANDABLE)[2] is None


def test_oom_by_free_blocks_of_other_stream(run_out):
    traced, report, seen = run_out("stream")
    oom = only(report, seen, "stream")
    assert unused(oom)["stranded_stream"] > oom["requested_bytes"]
    assert remedy(oom, "one stream") is None
    assert run_out("stream", "--remedied")[2] is None


def test_oom_by_free_blocks_of_other_pool(run_out, torch_version):
    traced, report, seen = run_out("pool")
    oom = only(report, seen, "pool")
    assert unused(oom)["stranded_pool"] > oom["requested_bytes"]
    assert remedy(oom, "memory pools") is None
    assert run_out("pool", "--remedied")[2] is None


def test_oom_by_free_bytes_among_small_blocks(run_out):
    traced, report, seen = run_out("small")
    oom = only(report, seen, "small")
    assert unused(oom)["stranded_pool"] == seen["reserved"] - seen["allocated"]
    assert remedy(oom, "memory pools") == "not named"


def test_oom_by_request_larger_than_device(run_out):
    traced, report, seen = run_out("size")
    oom = only(report, seen, "size")
    assert oom["cause"] == "exceeds_device" and "exceeds the GPU" in oom["why"]
    assert not [one for one in oom["remedies"] if one["works"]]
    assert [verdict for verdict in traced.report()["verdicts"] if verdict["kind"] == "oom"]
