"""Reserved memory that no tensor uses, compared with PyTorch's statistics, its snapshot of
segments, and what emptying its cache really frees."""

import json
import re

import pytest

from conftest import WORKLOADS, gpumemtrace, sentences
from whatif_runs import assert_model_reproduces

CONFS = {"segments": {}, "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}}
STEPS = 30


def run_with_holes(run_python, torch_version, tmp_path, conf, *flags, **extra):
    """Returns the run, PyTorch's numbers at the end of each step, and the report for these."""
    run = run_python(torch_version, "memory/fragmentation_gap.py", tmp_path / "witness.json", *flags, **CONFS[conf], **extra)
    witness = json.loads((tmp_path / "witness.json").read_text())
    moments = [flag for step in range(1, len(witness) + 1) for flag in ("--at", f"step:{step}")]
    report = run.report("--fragmentation", *moments)
    gaps = [gap for gap in report["fragmentation"] if gap["at"]["why"] == "at"]
    assert len(gaps) == len(report["snapshots"]) == len(witness) == STEPS
    # Without the tracker, a trace lacks what the model needs.
    if report["traces"][0]["torch_tracker"] == "attached":
        assert_model_reproduces(run.trace)
    return run, report, list(zip(witness, gaps, report["snapshots"]))


def causes(gap):
    return {cause["cause"]: cause["bytes"] for cause in gap["causes"]}


def key(row):
    return json.dumps([row["stream"], row["pool"], row["blocks"], row["is_expandable"]])


KEPT = ("pinned", "stranded_stream", "stranded_pool")


def pinned_by_hand(groups, wanted):
    """Returns bytes pinned by blocks, from PyTorch's snapshot: free bytes in segments with a block
    or of a private pool."""
    kept = dict.fromkeys(KEPT, 0)
    for name, row in groups.items():
        stream, pool, blocks, _ = json.loads(name)
        if (pool, blocks) != (wanted["pool"], wanted["blocks"]):
            is_private = pool not in (None, [0, 0]) and pool != wanted["pool"]
            kept["stranded_pool"] += row["reserved"] - row["allocated"] if is_private else row["beside"]
        else:
            kept["stranded_stream" if stream != wanted["stream"] else "pinned"] += row["beside"]
    return kept


@pytest.mark.parametrize("conf", CONFS)
def test_every_byte_of_the_gap_has_a_cause(run_python, torch_version, tmp_path, conf):
    """Checks sums, groups of segments, and the cache: predicted from the trace, then emptied."""
    run, report, moments = run_with_holes(run_python, torch_version, tmp_path, conf)
    emptied = 0
    for step, (seen, gap, instant) in enumerate(moments, start=1):
        assert instant["when"] == f"step:{step}" and instant["step"] == gap["at"]["step"] == step
        assert instant["live_bytes"] == gap["live_bytes"] == seen["allocated"]
        assert instant["reserved_bytes"] == gap["reserved_bytes"] == seen["reserved"]
        assert sum(site["bytes"] for site in instant["sites"]) == seen["allocated"]
        assert gap["requested_bytes"] == seen["requested"]
        by_cause = causes(gap)
        assert sum(by_cause.values()) == gap["gap_bytes"] == seen["reserved"] - seen["requested"]
        assert "unexplained" not in by_cause and "pending_free" not in by_cause
        assert by_cause["rounding"] == seen["allocated"] - seen["requested"]
        rows = {key(row): row for row in gap["pools"]}
        # If PyTorch's snapshot lacks pools, the trace lacks them too.
        told = {name: row["reserved"] for name, row in seen["groups"].items()}
        assert {name: row["reserved_bytes"] for name, row in rows.items()} == told
        for name, row in seen["groups"].items():
            ours = rows[name]
            assert (ours["segments"], ours["allocated_bytes"], ours["largest_free_bytes"]) == (
                row["segments"], row["allocated"], row["largest"])
            assert ours["free_bytes"] == row["reserved"] - row["allocated"]
        if conf == "segments":
            assert {cause: by_cause.get(cause, 0) for cause in KEPT} == pinned_by_hand(seen["groups"], gap["request"])
        if "emptied" in seen:
            emptied += seen["emptied"]
            assert by_cause.get("cache", 0) == seen["emptied"], (step, by_cause)
    assert emptied > 0
    found = {cause for _, gap, _ in moments for cause in causes(gap)}
    assert {"rounding", "stranded_stream", "stranded_pool", "pinned", "cache"} <= found
    for point in report["fragmentation_over_time"][0]["points"]:
        assert sum(point["causes"].values()) == point["gap_bytes"] and "unexplained" not in point["causes"]


@pytest.mark.parametrize("conf", CONFS)
def test_pending_frees_of_other_streams_are_a_cause(run_python, torch_version, tmp_path, conf):
    run, report, moments = run_with_holes(run_python, torch_version, tmp_path, conf, "--pending", SIMGPU_EVENT_DELAY_US=3000)
    for seen, gap, _ in moments:
        by_cause = causes(gap)
        assert sum(by_cause.values()) == gap["gap_bytes"] == seen["reserved"] - seen["requested"]
        assert "unexplained" not in by_cause and by_cause.get("pending_free", 0) == seen["pending"]
    assert any(seen["pending"] for seen, *_ in moments)


@pytest.mark.parametrize("conf", CONFS)
def test_gap_without_tracker_is_almost_fully_explained(run_python, torch_version, tmp_path, conf):
    run, report, moments = run_with_holes(run_python, torch_version, tmp_path, conf, GPUMEMTRACE_TORCH_DETAILS="off")
    for seen, gap, _ in moments:
        by_cause = causes(gap)
        assert gap["requested_bytes"] is None and gap["pools"] == gap["common_sizes"] == []
        assert sum(by_cause.values()) == gap["gap_bytes"] == seen["reserved"] - seen["allocated"]
        assert by_cause.get("unexplained", 0) <= 0.01 * seen["reserved"]
        if conf == "segments" and "emptied" in seen:
            # Pools are unknown then, so bytes pinned by private pools count as cache.
            assert by_cause.get("cache", 0) >= seen["emptied"]


def test_snapshots_by_time_add_up(run_python, torch_version, tmp_path):
    run = run_python(torch_version, "memory/fragmentation_gap.py", tmp_path / "witness.json")
    first = run.report("--peak")["traces"][0]
    started = int(re.search(r"started_ns=(\d+)", gpumemtrace("dump", run.trace)).group(1))
    events = [int(event["time_ns"]) - started for event in run.events() if event["kind"].startswith("block_")]
    moments = [*events[:: len(events) // 199][:199], first["duration_ns"]]
    times = [flag for moment in moments for flag in ("--at", f"{moment}ns")]
    report = run.report("--fragmentation", *times)
    gaps = [gap for gap in report["fragmentation"] if gap["at"]["why"] == "at"]
    assert len(report["snapshots"]) == 200 and len(gaps) > 190
    assert len({gap["gap_bytes"] for gap in gaps}) > 100
    for gap in gaps:
        assert sum(causes(gap).values()) == gap["gap_bytes"] and "unexplained" not in causes(gap)
    # The last snapshot is after teardown.
    assert gaps[-1]["reserved_bytes"] == report["devices"][0]["exit"]["reserved_bytes"]


def test_fit_of_common_sizes_into_free_blocks(run_python, torch_version, tmp_path):
    """Computes by hand how often requests of each common size fit into PyTorch's free blocks."""
    run, report, moments = run_with_holes(run_python, torch_version, tmp_path, "segments")
    asked = {}
    for event in run.events():
        if event["kind"] == "block_alloc":
            asked[event["size"]] = asked.get(event["size"], 0) + 1
    for seen, gap, _ in moments:
        largest = {name: row["largest"] for name, row in seen["groups"].items()}
        for row in gap["common_sizes"]:
            mine = json.dumps([row["stream"], row["pool"], row["blocks"], False])
            assert row["requests"] <= asked[row["block_bytes"]]
            assert (row["fitting_blocks"] > 0) == (largest.get(mine, 0) >= row["block_bytes"])
            assert row["fitting_blocks"] * row["block_bytes"] <= row["free_bytes"]


def test_unreached_snapshot_is_refused_in_one_line(run_python, torch_version, tmp_path):
    run = run_python(torch_version, "memory/fragmentation_gap.py", tmp_path / "witness.json", "--steps", "2")
    for moment in ("step:99", "5h"):
        assert gpumemtrace("replay", run.trace, "--at", moment, code=2) == ""
    assert gpumemtrace("replay", run.trace, "--at", "soon", code=2) == ""
    text = gpumemtrace("replay", run.trace, "--at", "step:1")
    assert "at step:1 (" in text and "Unused reserved: " in text


def test_driver_pool_has_its_own_row(run_python, torch_version, tmp_path):
    """cudaMallocAsync: allocated bytes at any time; reserved bytes where PyTorch queried them."""
    run = run_python(torch_version, "memory/async_pool.py", tmp_path / "witness.json",
                     PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
    printed = json.loads((tmp_path / "witness.json").read_text())
    witness = printed["moments"]
    report = run.report("--fragmentation")
    assert report["fragmentation"] == []
    [pool] = report["async_pools"]
    assert (pool["device"], pool["pool"]) == (0, None)
    unused = [reserved - allocated for allocated, reserved in witness]
    assert pool["peak_allocated_bytes"] == printed["peak"]
    assert pool["allocated_bytes"] == witness[-1][0] == pool["last"]["allocated_bytes"]
    assert pool["last"]["reserved_bytes"] == witness[-1][1]
    assert pool["most_unused"]["unused_bytes"] == max(unused)
    assert pool["samples"] >= len(witness)
    assert "unused reserved" in gpumemtrace("replay", run.trace, "--fragmentation")


MOMENTS = "memory/gap_moments.py"


def run_with_private_pools(run_python, torch_version, tmp_path, *flags, **extra):
    run = run_python(torch_version, MOMENTS, tmp_path / "witness.json", *flags, **extra)
    rows = {gap["at"]["why"]: gap for gap in run.report("--fragmentation")["fragmentation"]}
    return run, rows, json.loads((tmp_path / "witness.json").read_text())


def private_pools(gap):
    """Returns the stranded bytes of each pool of a graph or a MemPool."""
    [pools] = [cause["pools"] for cause in gap["causes"] if cause["cause"] == "stranded_pool"]
    return {tuple(pool["pool"]): pool["bytes"] for pool in pools if pool["pool"] != [0, 0]}


def line_of(comment):
    lines = (WORKLOADS / MOMENTS).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# line: {comment}"))


def test_free_memory_of_live_private_pools_is_stranded_and_no_cache(run_python, torch_version, tmp_path):
    """empty_cache() returns the cache to the byte, and nothing of a live MemPool or CUDA graph."""
    run, rows, seen = run_with_private_pools(run_python, torch_version, tmp_path)
    last = seen["steps"][-1]
    assert last["free"]["private"] > last["free"]["graphs"] > 0
    by_cause = causes(rows["last_step"])
    assert by_cause["cache"] == seen["emptied"] == last["free"]["empty"]
    assert sum(private_pools(rows["last_step"]).values()) == last["free"]["private"] <= by_cause["stranded_pool"]
    assert by_cause["stranded_stream"] == last["free"]["streams"] > 0
    assert sum(size for (capture, _), size in private_pools(rows["last_step"]).items() if capture) == last["free"]["graphs"]
    [cause] = [cause for cause in rows["last_step"]["causes"] if cause["cause"] == "stranded_pool"]
    assert {line_of("take"), line_of("graph")} <= {culprit["site"]["line"] for culprit in cause["culprits"]}
    text = sentences(gpumemtrace("replay", run.trace, "--fragmentation"))
    assert "delete these graphs and pools, then torch.cuda.empty_cache() returns" in text


def test_rows_are_pytorchs_largest_gap_last_step_and_end(run_python, torch_version, tmp_path):
    run, rows, seen = run_with_private_pools(run_python, torch_version, tmp_path)
    assert list(rows) == ["peak_reserved", "largest_gap", "last_step", "end"]
    moments = {"largest_gap": seen["largest"], "last_step": seen["steps"][-1], "end": seen["end"]}
    for why, numbers in moments.items():
        row = rows[why]
        assert (row["gap_bytes"], row["reserved_bytes"], row["requested_bytes"], row["live_bytes"]) == (
            numbers["gap"], numbers["reserved"], numbers["requested"], numbers["allocated"]), why
        assert sum(causes(row).values()) == row["gap_bytes"]
    assert rows["last_step"]["at"]["step"] == len(seen["steps"]) - 1


def test_refused_call_of_another_library_is_a_row(run_python, torch_version, tmp_path):
    run, rows, seen = run_with_private_pools(run_python, torch_version, tmp_path, "--refused", SIMGPU_MEM="1G")
    row, refused = rows["failed_call"], seen["refused"]
    assert (row["gap_bytes"], causes(row)["cache"]) == (refused["gap"], refused["free"]["empty"])
    call = row["at"]["call"]
    assert call["requested_bytes"] == refused["bytes"]
    assert (call["site"]["file"], call["site"]["line"]) == (str(WORKLOADS / MOMENTS), line_of("refused"))
    assert "when the driver refused" in sentences(gpumemtrace("replay", run.trace, "--fragmentation"))


def test_stranded_memory_is_in_the_summary(run_python, torch_version, tmp_path):
    run, rows, seen = run_with_private_pools(run_python, torch_version, tmp_path)
    [verdict] = [one for one in run.report()["verdicts"] if one["kind"] == "stranded_memory"]
    evidence = verdict["evidence"]
    row = rows[evidence["at"]]
    assert evidence["private_pool_bytes"] == sum(private_pools(row).values())
    assert evidence["stream_bytes"] == causes(row)["stranded_stream"]
    summary = sentences(gpumemtrace("replay", run.trace))
    assert "only for CUDA graphs and MemPools" in summary and "untested: allocate on one stream" in summary


def test_moments_with_the_same_gap_are_printed_once(run_python, torch_version, tmp_path):
    """Without other work, reserved memory and the gap stay the same from the peak to the end."""
    program = tmp_path / "same.py"
    program.write_text("import torch\nkept = torch.empty(15 << 20, dtype=torch.uint8, device='cuda')\n")
    run = run_python(torch_version, program)
    assert len(run.report("--fragmentation")["fragmentation"]) == 3
    text = sentences(gpumemtrace("replay", run.trace, "--fragmentation"))
    assert text.count("Unused reserved: ") == 1
    for moment in ("when reserved memory was highest", "when unused reserved memory was highest", "when the program finished"):
        assert moment in text
