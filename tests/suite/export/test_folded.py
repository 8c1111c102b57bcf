"""Folded stacks hold the report's totals, and speedscope reads them."""

import re
import subprocess
from collections import Counter

import pytest

from conftest import COMMAND
from speedscope_page import open_in_speedscope
from stack_exports import VALUES, Recount, deepest_user_lines, peak_lines
from stack_exports import stack_run  # noqa: F401 (fixture)

FRAME = re.compile(r"(?P<function>.*) \((?P<file>.*):(?P<line>\d+)\)", re.DOTALL)


def read_folded(path):
    """Returns the stacks of a file, each as its frames and bytes."""
    text = path.read_text()
    assert text.endswith("\n") or not text
    lines = [line.rsplit(" ", 1) for line in text.split("\n") if line]
    return [(stack.split(";"), int(value)) for stack, value in lines]


def places(frames):
    found = [FRAME.fullmatch(frame) for frame in frames]
    return [(match["file"], int(match["line"])) if match else (None, None) for match in found]


@pytest.mark.parametrize("name", ["leak", "oom", "hostile", "ranks"])
@pytest.mark.parametrize("value", VALUES)
def test_sums_are_those_of_the_report(stack_run, name, value):
    run = stack_run(name)
    expected = run.total(value)
    notes = None if expected else "the file is empty"
    stacks = read_folded(run.export("folded", "--weight", value, notes=notes))
    assert sum(bytes_ for _, bytes_ in stacks) == expected
    assert len({tuple(frames) for frames, _ in stacks}) == len(stacks), "a stack has two lines"


def test_lines_hold_at_the_peak_what_the_report_says(stack_run):
    run = stack_run("leak")
    stacks = [(places(frames), bytes_) for frames, bytes_ in read_folded(run.export("folded"))]
    assert deepest_user_lines(stacks) == peak_lines(run.report)


def test_ranks_are_outermost_frames(stack_run):
    run = stack_run("ranks")
    stacks = read_folded(run.export("folded"))
    assert {frames[0] for frames, _ in stacks} == {"rank 0, GPU 0", "rank 1, GPU 0"}
    for rank, totals in enumerate(run.totals):
        assert sum(bytes_ for frames, bytes_ in stacks if frames[0].startswith(f"rank {rank},")) == totals["peak"][0]


@pytest.mark.parametrize("part", [(0.0, 0.5), (0.3, 0.6), (0.7, 0.95)])
def test_windows_hold_what_a_recount_of_the_dump_holds(stack_run, part):
    run = stack_run("leak")
    events = Recount(run.traces[0], run.report)
    begin_ns, end_ns = map(events.time_at, part)
    expected = events.window(begin_ns, end_ns)
    for value in ["peak", "end", "allocated"]:
        stacks = read_folded(run.export("folded", "--weight", value, "--since", f"{begin_ns}ns", "--until", f"{end_ns}ns"))
        assert sum(bytes_ for _, bytes_ in stacks) == expected[value] > 0, (value, part)


def test_peak_of_an_empty_window_is_the_state_at_it(stack_run):
    run = stack_run("leak")
    events = Recount(run.traces[0], run.report)
    at_ns = events.time_at(0.6)
    expected = events.window(at_ns, at_ns)["end"]
    assert events.window(-1, at_ns)["peak"] > expected > 0
    for value in ["peak", "end"]:
        stacks = read_folded(run.export("folded", "--weight", value, "--since", f"{at_ns}ns", "--until", f"{at_ns}ns"))
        assert sum(bytes_ for _, bytes_ in stacks) == expected


def test_leaks_are_those_of_the_whole_run(stack_run):
    run = stack_run("leak")
    note = "leaks are those of the whole run"
    stacks = read_folded(run.export("folded", "--weight", "leaked", "--until", "step:10", notes=note))
    assert sum(bytes_ for _, bytes_ in stacks) == run.total("leaked") > 0


def test_equal_traces_give_equal_files(stack_run):
    run = stack_run("hostile")
    first = run.export("folded").read_bytes()
    assert run.export("folded").read_bytes() == first


def test_speedscope_reads_every_stack(stack_run, tmp_path):
    run = stack_run("hostile")
    path = run.export("folded")
    shown = open_in_speedscope(path, tmp_path)
    assert shown.title == "export.folded - speedscope"
    expected = Counter()
    for frames, bytes_ in read_folded(path):
        expected[frames[-1]] += bytes_
    own = Counter()
    for name, _, amount in shown.functions:
        own[name] += amount
    assert +own == expected


def test_stdout_holds_only_the_stacks(stack_run):
    run = stack_run("leak")
    done = subprocess.run([COMMAND, "export", "folded", run.traces[0], "--output", "-"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr
    assert done.stdout == run.export("folded").read_text()
