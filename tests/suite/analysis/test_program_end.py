"""The end of a program, before interpreter teardown, equals what its last statement printed."""

import json
from pathlib import Path

import pytest

from conftest import VENVS, WORKLOADS, environment, gpumemtrace, run_program

PROGRAM = WORKLOADS / "training/program_ends.py"
# Exit codes by way to end.
WAYS = {"main": 0, "module": 0, "sys_exit": 3, "exception": 1, "threads": 0, "atexit": 0, "finalizers": 0, "backward": 0}


def end_program(folder, torch_version, way, code, *launch, **extra):
    """Runs the program one way. Returns what it printed last, its trace, and the report."""
    python = Path(VENVS[torch_version]) / "bin" / "python"
    process = run_program([python, *(launch or [PROGRAM]), way], folder, env=environment(folder, **extra))
    assert process.returncode == code, process.stderr[-2000:]
    printed = [int(number) for number in process.stdout.splitlines()[-1].split()]
    # A program without GPU memory of its own, such as the parent of a child, writes no blocks.
    for trace in sorted(folder.glob("run*.trace")):
        report = json.loads(gpumemtrace("replay", trace, "--json", "--at", "end"))
        if report["traces"][0]["events"]["block_alloc"]:
            return printed, trace, report
    raise AssertionError("no trace with blocks")


def assert_end_is(printed, report, moment):
    allocated, reserved = printed
    end = report["devices"][0]["end"]
    assert (end["live_bytes"], end["reserved_bytes"], end["moment"]) == (allocated, reserved, moment)
    snapshot = report["snapshots"][0]
    assert snapshot["when"] == "end" and snapshot["live_bytes"] == allocated
    assert sum(site["bytes"] for site in snapshot["sites"]) == allocated
    gap = next(gap for gap in report["fragmentation"] if gap["at"]["why"] == "end")
    assert gap["gap_bytes"] == reserved - gap["requested_bytes"] == sum(cause["bytes"] for cause in gap["causes"])
    assert not any(cause["cause"] == "unexplained" for cause in gap["causes"])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", WAYS)
def test_end_is_what_the_last_statement_sees(tmp_path, torch_version, way):
    printed, _, report = end_program(tmp_path, torch_version, way, WAYS[way])
    assert_end_is(printed, report, "before_teardown")
    exit_state = report["devices"][0]["exit"]
    assert exit_state["live_bytes"] < printed[0]


def test_end_of_a_module_run_by_name(tmp_path, torch_version):
    printed, _, report = end_program(
        tmp_path, torch_version, "atexit", 0, "-m", "program_ends", PYTHONPATH=PROGRAM.parent,
    )
    assert_end_is(printed, report, "before_teardown")


def test_end_of_a_spawned_process(tmp_path, torch_version):
    printed, _, report = end_program(tmp_path, torch_version, "child", 0)
    end = report["devices"][0]["end"]
    assert (end["live_bytes"], end["reserved_bytes"]) == tuple(printed)


@pytest.mark.parametrize("way, code", [("killed", -9), ("os_exit", 0)])
def test_program_without_teardown_ends_with_its_last_event(tmp_path, torch_version, way, code):
    printed, _, report = end_program(tmp_path, torch_version, way, code)
    assert_end_is(printed, report, "last_event")
    assert report["devices"][0]["exit"]["live_bytes"] == printed[0]


def test_without_python_stacks_the_end_is_before_the_last_frees(tmp_path, torch_version):
    printed, _, report = end_program(tmp_path, torch_version, "finalizers", 0, GPUMEMTRACE_STACKS="none")
    assert_end_is(printed, report, "before_last_frees")


def test_text_names_the_moment(tmp_path, torch_version):
    printed, trace, _ = end_program(tmp_path, torch_version, "module", 0)
    text = gpumemtrace("replay", trace, "--units", "bytes", "--at", "end")
    assert "highest at end (before interpreter teardown) allocated " in " ".join(text.split())
    allocated = next(line for line in text.splitlines() if line.startswith("  allocated"))
    assert f"{printed[0]:,} B" in allocated
    assert "GPU 0 at end (before interpreter teardown; " in text
