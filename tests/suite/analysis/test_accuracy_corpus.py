"""The corpus of real programs is large enough, and its judge grades reports as defined."""

import sys
from collections import Counter
from types import SimpleNamespace

import pytest

from conftest import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "scripts" / "accuracy"))
from corpus.judge import judge  # noqa: E402
from corpus.programs import all_programs, sample_of  # noqa: E402
from corpus.truth import rate_of, still_grows  # noqa: E402

PROGRAMS = all_programs()
LEAK = next(program for program in PROGRAMS if program.full_name == "training/loss_history")


def test_corpus_has_fifty_programs_of_each_main_kind():
    kinds = Counter(program.kind for program in PROGRAMS)
    assert kinds["leak"] >= 50 and kinds["healthy"] >= 50, kinds


def test_sample_is_fixed_and_has_every_kind():
    names = [program.full_name for program in sample_of(PROGRAMS, 12)]
    assert names == [program.full_name for program in sample_of(PROGRAMS, 12)]
    assert {program.kind for program in sample_of(PROGRAMS, 12)} == {"leak", "healthy", "growing", "filling"}


def site(line, file=LEAK.path):
    return {"file": str(file), "line": line, "function": "main"}


def finding(line, rate=512):
    return {"site": site(line), "bytes_per_step": rate, "bytes": 40 * rate}


RIGHT = min(LEAK.lines)


@pytest.mark.parametrize("leaks,growth,result", [
    ([finding(RIGHT), finding(1)], [], "line first"),
    ([finding(1), finding(RIGHT)], [], "line later"),
    ([finding(1)], [], "other line"),
    ([], [{"site": site(RIGHT), "class": "possible_leak", "bytes": 9}], "growth"),
    ([], [{"site": site(1), "class": "unknown", "bytes": 9}], "growth, line"),
    ([], [], "missed"),
])
def test_leaking_run_is_graded(leaks, growth, result):
    report = {"leaks": leaks, "leak_assessment": [{"status": "assessed", "growth": growth}], "steps": {"source": "optimizer", "count": 40}}
    row = judge(LEAK, SimpleNamespace(values=[0] * 40, rate=512.0), report)
    assert row["result"] == result
    assert row["class"] == (growth[0]["class"] if growth else None)


@pytest.mark.parametrize("counted,reported,error,step_error", [(40, 512, 0.0, 0.0), (80, 256, 0.0, -0.5), (40, 768, 0.5, 0.5)])
def test_rate_is_compared_over_the_run_and_per_step(counted, reported, error, step_error):
    report = {"leaks": [finding(RIGHT, reported)], "leak_assessment": [], "steps": {"source": "optimizer", "count": counted}}
    rate = judge(LEAK, SimpleNamespace(values=[0] * 40, rate=512.0), report)["rate"]
    assert (rate["error"], rate["step_error"]) == (error, step_error)


def test_measured_rate_covers_whole_periods_after_warm_up():
    values = [0, 900] + [900 + 100 * (step // 5) for step in range(2, 43)]
    assert rate_of(values, begins=4, every=5) == pytest.approx(20)
    assert rate_of(values[:3], begins=4, every=5) is None


def test_growth_until_the_end_contradicts_health():
    assert still_grows([0] * 10 + list(range(40)))
    assert not still_grows([0] * 10 + list(range(25)) + [24] * 20)
    assert not still_grows([0, 5, 9, 1] * 12)
