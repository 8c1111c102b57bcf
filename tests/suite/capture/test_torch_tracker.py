"""Runs in which PyTorch's trace tracker is missing or unknown."""

import json
import re
from pathlib import Path

import pytest

from conftest import VENVS, gpumemtrace
from ground_truth import assert_blocks_equal_torch, assert_calls_equal_driver

pytestmark = pytest.mark.every_torch

UNKNOWN_VERSION, UNREADABLE = 2, 4


def another_torch(version, folder, files):
    """Links an environment's PyTorch into a folder for PYTHONPATH and replaces some files."""
    packages = next(Path(VENVS[version]).glob("lib/python3.*/site-packages"))
    for package in packages.iterdir():
        if package.name != "torch":
            (folder / package.name).symlink_to(package)
    for place in ("torch", "torch/lib"):
        (folder / place).mkdir()
        for entry in (packages / place).iterdir():
            if entry.name != "lib" and f"{place}/{entry.name}" not in files:
                (folder / place / entry.name).symlink_to(entry)
    for name, change in files.items():
        (folder / name).write_bytes(change((packages / name).read_bytes()))
    return {"PYTHONPATH": folder}


def run_without_tracker(run_python, version, tmp_path, files):
    packages = tmp_path / "packages"
    packages.mkdir()
    run = run_python(version, "training/train.py", "--stats", tmp_path / "stats.json", **another_torch(version, packages, files))
    lines = [line for line in run.process.stderr.splitlines() if line.startswith("gpumemtrace")]
    assert len(lines) == 1 and "Blocks and driver calls are." in lines[0], run.process.stderr
    # The profiler hook stays exact.
    assert_blocks_equal_torch(run.events(), json.loads((tmp_path / "stats.json").read_text()))
    assert_calls_equal_driver(run.events(), run.calls())
    assert all("requested" not in event for event in run.events())
    return run, lines[0]


def tracker_states(run):
    return [event["aux0"] for event in run.events() if event["kind"] == "tracker"]


@pytest.mark.parametrize("faked", ["9.9.9", "2.15.0a0+git123"])
def test_unknown_version_falls_back_to_profiler_hook(run_python, torch_version, faked, tmp_path):
    fake = lambda text: re.sub(rb"__version__ = '[^']*'", b"__version__ = '%s'" % faked.encode(), text)
    run, line = run_without_tracker(run_python, torch_version, tmp_path, {"torch/version.py": fake})
    assert f"PyTorch {faked} is not a version that this gpumemtrace supports" in line
    assert tracker_states(run) == [UNKNOWN_VERSION]
    assert run.report()["traces"][0]["torch_tracker"] == "unknown_version"
    assert "does not know the allocator tracker of this PyTorch version" in gpumemtrace("replay", run.trace)


def test_tracker_can_be_disabled(run_python, torch_version, tmp_path):
    run = run_python(torch_version, "training/train.py", "--stats", tmp_path / "stats.json", GPUMEMTRACE_TORCH_DETAILS="off")
    assert "gpumemtrace" not in run.process.stderr
    assert_blocks_equal_torch(run.events(), json.loads((tmp_path / "stats.json").read_text()))
    assert all("requested" not in event for event in run.events())
    assert run.report()["traces"][0]["torch_tracker"] == "not_wanted"


def test_library_without_symbols_falls_back_to_profiler_hook(run_python, torch_version, tmp_path):
    strip = lambda library: library.replace(b"Native22NativeCachingAllocator", b"Native22NativeCachingAllocatoR")
    run, line = run_without_tracker(run_python, torch_version, tmp_path, {"torch/lib/libc10_cuda.so": strip})
    assert "lacks the symbols that PyTorch's wheels have" in line
    assert tracker_states(run) == [UNREADABLE]


def test_gap_includes_requested_bytes(run_python, torch_version, tmp_path):
    """Rounding, frees that wait for a stream, and segments add up; PyTorch's requests agree."""
    run = run_python(torch_version, "training/allocator_matrix.py", "pools", "--history", tmp_path / "history.json", SIMGPU_EVENT_DELAY_US=3000)
    report = run.report()
    assert report["traces"][0]["torch_tracker"] == "attached"
    assert "allocator tracker attached" in gpumemtrace("replay", run.trace, "-v")
    assert not [verdict for verdict in report["verdicts"] if verdict["kind"] in ("segment_mismatch", "total_mismatch")]
    peak = next(gap for gap in report["fragmentation"] if gap["at"]["why"] == "peak_reserved")
    causes = {cause["cause"]: cause["bytes"] for cause in peak["causes"]}
    assert sum(causes.values()) == peak["gap_bytes"] == peak["reserved_bytes"] - peak["requested_bytes"]
    assert "unexplained" not in causes and causes["rounding"] == peak["live_bytes"] - peak["requested_bytes"]
    # The cache was emptied after the last block; only the tracker records that.
    assert report["devices"][0]["end"]["reserved_bytes"] == 0
    # From PyTorch's history: live, requested and pending bytes when most is reserved.
    asked, pending, reserved, most, witness = {}, {}, 0, 0, None
    for action, addr, size, *_ in json.loads((tmp_path / "history.json").read_text())[0]:
        if action == "alloc":
            asked[addr] = size
            if reserved > most:
                most, witness = reserved, (sum(asked.values()), set(pending))
        elif action == "free_requested":
            pending[addr] = asked.pop(addr)
        elif action == "free_completed":
            del pending[addr]
        elif action in ("segment_alloc", "segment_map"):
            reserved += size
        elif action in ("segment_free", "segment_unmap"):
            reserved -= size
    assert (most, witness[0]) == (peak["reserved_bytes"], peak["requested_bytes"])
    assert ("pending_free" in causes) == bool(witness[1])


def test_out_of_memory_is_recorded_without_the_tracker(run_python, torch_version):
    """Then the event has no size, stream and pool of the request, as with PyTorch's old versions."""
    run = run_python(torch_version, "training/allocator_matrix.py", "oom", "--history", "history.json", check=False, GPUMEMTRACE_TORCH_DETAILS="off", SIMGPU_MEM="256M")
    errors = [event for event in run.events() if event["kind"] == "oom"]
    assert errors and len(run.report()["oom"]) == len(errors)
