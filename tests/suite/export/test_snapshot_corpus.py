"""Reads PyTorch snapshots of many versions, and compares every number with their own segments.

The files are those in tests/golden/snapshots/, and those below GPUMEMTRACE_CORPUS if it is set.
test_snapshot_and_trace.py compares snapshots with our traces of the same runs.
"""

import importlib.util
import re
from pathlib import Path

import pytest

from conftest import VENVS, sentences
from consistency import assert_consistent
from snapshot_oracle import LIVE, PENDING
from snapshot_reports import blocks_of_dump, contents, gap_at_end, name_of, oracle, report_of, rows_by_device, run_command, snapshot_files, stats_at_the_dump

FILES = snapshot_files()
of_each_file = pytest.mark.parametrize("path", FILES, ids=name_of)


@of_each_file
def test_oracle_explains_every_block(path):
    """Replayed by PyTorch's rules, the events lead to the segments in the file."""
    for history in oracle(path).values():
        assert not history.mismatches
        assert history.course[-1] == history.end


@of_each_file
def test_end_equals_the_segments(path):
    code, report = report_of(path)
    devices = rows_by_device(report["devices"])
    assert set(devices) == {device for device, history in oracle(path).items() if history.segments or history.events}
    for device, history in oracle(path).items():
        end = devices[device]["end"]
        assert (end["live_bytes"], end["reserved_bytes"]) == (history.end.live, history.end.reserved)
        # A snapshot has no driver calls.
        assert end["device_bytes"] is None and devices[device]["peak"]["device_bytes"] is None


@of_each_file
def test_causes_of_the_gap_equal_the_segments(path):
    code, report = report_of(path)
    assert_consistent(report)
    for gap in report["fragmentation"]:
        assert gap["gap_bytes"] == gap["reserved_bytes"] - gap["requested_bytes"]
    for device, history in oracle(path).items():
        gap, causes = gap_at_end(report, device)
        if gap is None:
            assert history.end.reserved == 0
            continue
        assert (gap["reserved_bytes"], gap["requested_bytes"]) == (history.end.reserved, history.end.requested)
        assert sum(causes.values()) == history.end.reserved - history.end.requested
        assert causes.get("pending_free", 0) == history.end.pending
        assert causes.get("rounding", 0) == history.end.live - history.end.requested
        assert "unexplained" not in causes


@of_each_file
def test_printed_events_leave_the_blocks_of_the_segments(path):
    expected = {
        (str(device), f"{block.addr:#x}"): [block.size, block.requested, block.state == PENDING]
        for device, history in oracle(path).items() for block in history.blocks.values()
    }
    assert blocks_of_dump(path) == expected


@of_each_file
def test_peak_is_the_highest_point_of_the_history(path):
    code, report = report_of(path)
    devices = rows_by_device(report["devices"])
    peaks = rows_by_device(row for row in report["peak"] if row["layer"] == "torch")
    for device, history in oracle(path).items():
        # A block that is older than the history may be larger than the oracle derives, by a rest
        # that PyTorch does not split off.
        slack = history.uncertain << 20 if history.rounding.is_known else history.peak.live
        assert abs(devices[device]["peak"]["live_bytes"] - history.peak.live) <= slack
        assert devices[device]["peak"]["reserved_bytes"] == max(totals.reserved for totals in history.course)
        if not slack and history.peak.live:
            assert_sites_equal(peaks[device]["sites"], history.peak_by_stack())


def assert_sites_equal(sites, by_stack):
    """Compares bytes by site. The site of a stack is its innermost Python frame that is one.

    Stacks without such a frame are compared as one.
    """
    reported, expected = {}, {}
    for row in sites:
        site = row["site"]["file"], row["site"]["line"], row["site"]["function"]
        site = site if is_python(site) else None
        reported[site] = reported.get(site, 0) + row["bytes"]
    for frames, size in by_stack.items():
        site = next((frame for frame in frames or () if is_python(frame) and frame in reported), None)
        expected[site] = expected.get(site, 0) + size
    assert reported == expected


def is_python(frame):
    return str(frame[0]).endswith((".py", ">"))


@of_each_file
def test_missing_history_is_said_and_sets_the_exit_code(path):
    """Events that were overwritten make the trace incomplete; a history that began late does not."""
    code, report = report_of(path)
    lost = any(history.lost_events for history in oracle(path).values())
    assert code == (6 if lost else 0)
    assert report["traces"][0]["complete"] == (not lost)
    text = sentences(run_command("replay", path).stdout)
    assert ("lacks its oldest events" in text) == lost
    earlier = sum(len(history.before) for history in oracle(path).values())
    if not any(history.events for history in oracle(path).values()):
        assert "without a history" in text
    elif earlier:
        assert f"{earlier:,} block" in text and "existed before the first" in text


def torch_viz(venv):
    """PyTorch's own reader of snapshots, printing plain numbers."""
    folder = next(Path(venv).glob("lib/python3.*/site-packages/torch/cuda"))
    spec = importlib.util.spec_from_file_location("memory_viz", folder / "_memory_viz.py")
    viz = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(viz)
    viz.Bytes = int
    return viz


@pytest.mark.parametrize("version", VENVS)
@of_each_file
def test_torch_reads_the_same_numbers(path, version):
    viz, snapshot = torch_viz(VENVS[version]), contents(path)
    code, report = report_of(path)
    totals = dict(re.findall(r"^(total_reserved|total_allocated): (\d+)", viz.segsum(snapshot), re.M))
    assert int(totals["total_reserved"]) == sum(row["end"]["reserved_bytes"] for row in report["devices"])
    gaps = [gap_at_end(report, row["device"])[0] for row in report["devices"]]
    # What PyTorch calls allocated here is the requested bytes.
    assert int(totals["total_allocated"]) == sum(gap["requested_bytes"] for gap in gaps if gap)
    printed = viz.trace(snapshot).splitlines()
    counts = report["traces"][0]["events"]
    assert counts["oom"] == sum(line.startswith("raise OutOfMemoryError") for line in printed)
    before = sum(len(history.before) for history in oracle(path).values())
    allocated = sum(bool(re.match(r"\w+ = (?!cudaMalloc)", line)) for line in printed)
    assert counts["block_alloc"] == allocated + before


@pytest.mark.parametrize("path", [path for path in FILES if stats_at_the_dump(path)], ids=name_of)
def test_stats_of_torch_at_the_dump(path):
    """`torch.cuda.memory_stats()`, written beside the snapshot when it was dumped."""
    stats = stats_at_the_dump(path)
    code, report = report_of(path)
    for device, row in rows_by_device(report["devices"]).items():
        torch = stats["devices"][device]
        assert row["end"]["live_bytes"] == torch["allocated_bytes.all.current"]
        assert row["end"]["reserved_bytes"] == torch["reserved_bytes.all.current"]
        history = oracle(path)[device]
        assert sum(block.size for block in history.blocks.values() if block.state in (LIVE, PENDING)) == torch["active_bytes.all.current"]
        if not history.begins_late and history.rounding.is_known:
            assert row["peak"]["live_bytes"] == torch["allocated_bytes.all.peak"]


def test_snapshot_without_times_shows_no_times():
    """PyTorch 2.1 writes none. Its native frames have names and no module."""
    [path] = [path for path in FILES if path.name == "torch-2.1.2-training-native.pickle.gz"]
    sections = ["--peak", "--timeline", "--fragmentation", "--oom", "--leaks"]
    for arguments in [[], sections]:
        text = run_command("replay", path, *arguments).stdout
        assert "us in" not in text and "0 us" not in text
        assert "::apply (unknown module)" in sentences(text) and "??" not in text
    assert "step 8" in text and "the events of this snapshot have no times" in text


@of_each_file
def test_leak_needs_live_bytes_that_grew(path):
    """Bytes that are not there cannot leak, whatever was allocated and freed before."""
    _, report = report_of(path)
    for leak in report["leaks"]:
        course = oracle(path)[leak["device"]].course
        assert course[-1].live - course[0].live >= leak["bytes"] / 2, leak["site"]
