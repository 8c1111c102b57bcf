"""Reports neither accuse healthy programs nor clear leaky ones, at the first recording."""

import json

import pytest

from conftest import WORKLOADS, gpumemtrace

PROGRAM = WORKLOADS / "leaks/first_contact.py"
MIB = 1 << 20


def line_of(comment):
    return next(number for number, line in enumerate(PROGRAM.read_text().splitlines(), 1) if line.endswith(f"# {comment}"))


@pytest.fixture
def report(run_python, torch_version):
    def run(name, *options, **extra):
        return run_python(torch_version, PROGRAM, name, *options, check="SIMGPU_MEM" not in extra, **extra).report()

    return run


def growth_of(report):
    return report["leak_assessment"][0]["growth"]


def warnings_of(report):
    return [verdict["kind"] for verdict in report["verdicts"] if verdict["severity"] != "info"]


@pytest.mark.parametrize("stacks", ["all", "python"])
def test_snapshot_of_one_pass_accuses_nobody(run_python, torch_version, stacks):
    run = run_python(torch_version, PROGRAM, "one_pass", stacks)
    for trace in (run.folder / "pass.pickle", run.trace):
        report = json.loads(gpumemtrace("replay", "--json", trace))
        assert (report["leaks"], growth_of(report)) == ([], []), trace


@pytest.mark.parametrize("stacks", ["python", "none"])
def test_one_pass_has_no_steps_and_no_leak(report, stacks):
    found = report("passes_without_steps", GPUMEMTRACE_STACKS=stacks)
    assert (found["leaks"], found["steps"]["source"]) == ([], None)


def test_cache_is_no_leak(report):
    alone, served = report("cache"), report("served_cache")
    assert alone["leaks"] == served["leaks"] == []
    # A loop that does nothing else looks the same.
    assert [growth["class"] for growth in growth_of(alone)] == ["possible_leak"]
    assert growth_of(served) == []


def test_validation_that_keeps_its_graph_is_not_passed_over(run_python, torch_version):
    run = run_python(torch_version, PROGRAM, "validation")
    report = run.report()
    row = growth_of(report)[0]
    assert (row["class"], row["site"]["line"]) == ("possible_leak", line_of("kept"))
    assert row["finding"]["bytes_per_step"] > 0 and row["finding"]["oom_step"] and row["finding"]["confidence"] is None
    assert "growth" in warnings_of(report)
    text = gpumemtrace("replay", run.trace)
    assert "No leaks detected" not in text and "Possible leak: +" in text and "If growth continues" in text
    run.report("--fail-on", "any", code=3)


def test_steps_are_named_after_the_call_that_was_seen(run_python, torch_version):
    run = run_python(torch_version, PROGRAM, "zero_grad")
    steps = run.report()["steps"]
    assert (steps["optimizer_call"], steps["site"]["line"]) == ("zero_grad", line_of("the visible call"))
    assert f"zero_grad() at {PROGRAM}:{steps['site']['line']}" in gpumemtrace("replay", "--leaks", run.trace)


def test_state_of_the_first_step_is_set_up(report):
    found = report("first_step", SIMGPU_MEM="700M")
    assert found["oom"] and found["leaks"] == []
    assert [growth["class"] for growth in growth_of(found)] == []
    assert not [remedy for remedy in found["oom"][0]["remedies"] if "retains" in remedy["action"]]


def test_model_on_a_resident_input_is_not_passed_over(report):
    found = report("resident_input")
    assert found["leaks"] == []
    assert [(growth["class"], growth["memory"]) for growth in growth_of(found)] == [("possible_leak", "tensors")]
    assert "growth" in warnings_of(found)


def test_line_that_leaks_in_two_phases_is_one_leak(report):
    [leak] = report("two_phases")["leaks"]
    assert (leak["site"]["line"], leak["bytes_per_step"]) == (line_of("helper"), 4 * MIB)
    assert leak["blocks"] >= 59


def test_line_at_which_the_pinned_cache_grew_is_not_said_to_hold_its_blocks(run_python, torch_version):
    run = run_python(torch_version, PROGRAM, "pinned_pages")
    [leak] = run.report()["leaks"]
    assert (leak["kind"], leak["site"]["line"]) == ("pinned_host", line_of("cache grows here"))
    assert [site["line"] for site in leak["host_cache_sites"]][:1] == [leak["site"]["line"]]
    for section in (), ("--leaks",):
        assert "Which line holds the blocks is unknown" in " ".join(gpumemtrace("replay", *section, run.trace).split())


def test_leak_of_a_server_without_steps_has_a_rate_in_time(run_python, torch_version):
    run = run_python(torch_version, PROGRAM, "routes", SIMGPU_MEM="4G")
    report, seen = run.report(), json.loads(run.process.stdout)
    [leak] = report["leaks"]
    assert (report["steps"]["source"], leak["site"]["line"], leak["bytes_per_step"]) == (None, line_of("result"), None)
    # The leak is judged from some interval on. On a busy machine, the rate depends on which.
    third = len(seen) // 3
    rates = [((to - begin) << 20) / (seen[to] - seen[begin]) for begin in range(third) for to in range(len(seen) - third, len(seen))]
    assert 0.8 * min(rates) < leak["bytes_per_second"] < 1.25 * max(rates)
    # The GPU is full 4096 blocks after the first, at that rate.
    seconds = 4096 * MIB / leak["bytes_per_second"]
    # The time counts from the start of the recording, and some of it passed before the first block.
    recorded = report["traces"][0]["duration_ns"] / 1e9
    assert 0.7 * seconds < leak["oom_elapsed_ns"] / 1e9 < 1.3 * seconds + recorded
    assert "Out of memory expected about" in gpumemtrace("replay", "--leaks", run.trace)


def found_lines(report):
    """Lines of the program with leaks and with growth of note, each with its class."""
    found = {(leak["site"]["line"], "leak") for leak in report["leaks"]}
    return found | {(row["site"]["line"], row["class"]) for row in growth_of(report) if row["bytes"] >= MIB}


@pytest.mark.every_torch
@pytest.mark.parametrize("how", ["both", "native", "none", "snapshot", "killed"])
def test_verdicts_are_equal_however_a_program_is_recorded(run_python, torch_version, how):
    expected = {(line_of("leaked output"), "leak"), (line_of("leaked graph"), "leak")}
    if how in ("snapshot", "killed"):
        run = run_python(torch_version, PROGRAM, "two_leaks", how, check=how != "killed")
        trace = run.folder / "run.pickle" if how == "snapshot" else run.trace
        assert found_lines(json.loads(gpumemtrace("replay", "--json", trace))) == expected
        return
    found = run_python(torch_version, PROGRAM, "two_leaks", GPUMEMTRACE_STACKS=how).report()
    if how == "both":
        assert found_lines(found) == expected
    else:
        # Without lines, both leaks are one unknown call site.
        assert found["leaks"] or growth_of(found), how
        assert "growth" in warnings_of(found) or "leak" in warnings_of(found)
