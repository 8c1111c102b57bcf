"""The moments that reports show, compared with what PyTorch reported then."""

import csv
import json

import pytest

from conftest import gpumemtrace

PROGRAM = "memory/main_function.py"


@pytest.fixture
def seen_run(run_python, torch_version, tmp_path):
    """A run with a main() function, and PyTorch's numbers at the begin of each step."""
    run = run_python(torch_version, PROGRAM, tmp_path / "seen.json")
    return run, json.loads((tmp_path / "seen.json").read_text())


def test_program_with_a_main_function_has_its_last_step_in_the_summary(seen_run):
    run, seen = seen_run
    [device] = run.report()["devices"]
    assert device["end"]["live_bytes"] == 0
    last = device["last_step"]
    assert [last["live_bytes"], last["reserved_bytes"]] == seen[-1] and last["step"] == len(seen) - 1
    text = gpumemtrace("replay", run.trace, "--units", "bytes")
    rows = " ".join(text.split())
    assert f"highest last step (end of step {len(seen) - 1}) allocated" in rows
    allocated = next(line for line in text.splitlines() if line.startswith("  allocated"))
    assert f"{seen[-1][0]:,} B" in allocated


def test_step_0_is_the_begin_of_the_run(seen_run):
    run, seen = seen_run
    report = run.report("--at", "step:0", "--at", "step:1", "--at", "step:2")
    snapshots = [one for one in report["snapshots"] if one["layer"] == "torch"]
    assert [one["when"] for one in snapshots] == ["step:0", "step:1", "step:2"]
    assert [one["live_bytes"] for one in snapshots] == [0, 0, seen[1][0]]
    whole, since = run.report(), run.report("--since", "step:0")
    assert since["traces"][0]["since"] is not None
    for key in ("peak", "end", "last_step"):
        assert since["devices"][0][key] == whole["devices"][0][key], key


def test_csv_has_the_leaking_line_at_the_last_step(seen_run, tmp_path):
    run, seen = seen_run
    gpumemtrace("export", "csv-sites", run.trace, "-o", tmp_path / "sites.csv")
    with open(tmp_path / "sites.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["layer"] == "torch"]
    assert sum(int(row["live_at_last_step_bytes"]) for row in rows) == seen[-1][0]
    assert sum(int(row["live_at_end_bytes"]) for row in rows) == 0
