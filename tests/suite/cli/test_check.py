"""Checks traces of real PyTorch against memory budgets."""

import json
import subprocess
import xml.etree.ElementTree

import pytest

from conftest import COMMAND, REPOSITORY, VENVS, gpumemtrace

DEMO = REPOSITORY / "scripts" / "demo_train.py"
VERSION = next(iter(VENVS), None)
LEAK_LINE = next(number for number, text in enumerate(DEMO.read_text().splitlines(), 1) if "features.append(" in text)
#: Leaked bytes per step: a batch of 8, 512 channels of 4 by 4 floats.
LEAK_BYTES = 8 * 512 * 4 * 4 * 4


@pytest.fixture
def demo(run_python):
    """Runs the demo, leaky or with --fixed."""

    def run(*options, name="traced"):
        return run_python(VERSION, DEMO, "--steps", 12, "--batch", 8, *options, name=name)

    return run


def refused(*arguments, code):
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert len(done.stderr.splitlines()) == 1
    return done.stderr


def test_written_budget_passes_same_run_and_fails_leaky_one(demo, tmp_path):
    mended, again, leaky = demo("--fixed"), demo("--fixed", name="again"), demo(name="leaky")
    budget, markdown, junit = tmp_path / "budget.toml", tmp_path / "summary.md", tmp_path / "junit.xml"
    gpumemtrace("check", mended.trace, "--budget", budget, "--write")
    assert "already exists" in refused("check", mended.trace, "--budget", budget, "--write", code=2)
    for run in (mended, again):
        kept = json.loads(gpumemtrace("check", run.trace, "--budget", budget, "--json"))
        assert kept["passed"] and all(one["state"] == "kept" and one["measured"] == one["limit"] for one in kept["budgets"])
    text = gpumemtrace("check", leaky.trace, "--budget", budget, "--markdown", markdown, "--junit", junit, code=3)
    line = f"demo_train.py:{LEAK_LINE} in look_at_features()"
    failed = [row for row in text.splitlines() if row.startswith("FAIL ")]
    assert any("leaks.count" in row and "1, over by 1 (limit 0)" in row for row in failed), text
    assert line in text and line in markdown.read_text()
    outcome = json.loads(gpumemtrace("check", leaky.trace, "--budget", budget, "--json", code=3))
    named = {one["name"]: one for one in outcome["budgets"]}
    assert named["leaks.bytes_per_step"]["over_by"] == LEAK_BYTES
    assert named["leaks.bytes_per_step"]["contributors"][0]["site"]["line"] == LEAK_LINE
    # The numbers are the report's; other suites compare those with PyTorch's.
    device = leaky.report()["devices"][0]
    assert named["peak.live"]["measured"] == device["peak"]["live_bytes"]
    assert named["peak.reserved"]["measured"] == device["peak"]["reserved_bytes"]
    suites = xml.etree.ElementTree.parse(junit).getroot()
    cases = suites.findall("./testsuite/testcase")
    assert [case.get("name") for case in cases] == [one["name"] for one in outcome["budgets"]]
    failures = [case.get("name") for case in cases if case.find("failure") is not None]
    assert failures == [one["name"] for one in outcome["budgets"] if one["fails"]]
    assert suites.get("failures") == str(len(failures)) and "leaks.count" in failures
    assert line in next(case for case in cases if case.get("name") == "leaks.count").find("failure").text
    rows = [row for row in markdown.read_text().splitlines() if row.startswith("| ") and "| measured |" not in row]
    assert len(rows) == len(cases) and all(row.count("|") == 6 for row in rows)


def test_budgets_per_line_and_function(demo, tmp_path):
    leaky, budget = demo(), tmp_path / "budget.toml"
    held = next(share for share in leaky.report("--peak")["peak"][0]["sites"] if share["site"]["line"] == LEAK_LINE)["bytes"]
    for pattern in (f"demo_train.py:{LEAK_LINE}", "look_at_features", "scripts/demo_train.py:look_*"):
        for limit, code in ((held, 0), (held - 1, 3)):
            budget.write_text(f"[[site]]\nmatch = '{pattern}'\npeak = {limit}\nbytes_per_step = {LEAK_BYTES}\nallocations_per_step = 1\n")
            outcome = json.loads(gpumemtrace("check", leaky.trace, "--budget", budget, "--json", code=code))
            assert [one["measured"] for one in outcome["budgets"]] == [held, LEAK_BYTES, 1]


def test_unknown_key_is_refused_and_unknown_value_fails(demo, run_python, tmp_path):
    budget = tmp_path / "budget.toml"
    budget.write_text("[peak]\nlive = '1 GiB'\nlife = '1 GiB'\n")
    printed = refused("check", tmp_path / "never.trace", "--budget", budget, code=2)
    assert "line 3: unknown field `life`, expected one of `live`, `reserved`, `device`" in printed
    # This program has no steps.
    once = tmp_path / "once.py"
    once.write_text("import torch\nkept = torch.empty(1 << 20, device='cuda')\n")
    run = run_python(VERSION, once, name="once")
    budget.write_text("[peak]\nlive = '1 GiB'\n[step]\npeak = '1 GiB'\n[leaks]\nbytes_per_step = 0\n")
    text = gpumemtrace("check", run.trace, "--budget", budget, code=3)
    assert text.count("unknown: no steps were found in this run") == 2
    assert "1 of 3 limits met, 2 unknown" in text and "ok       peak.live" in text
    budget.write_text("if_unknown = 'pass'\n" + budget.read_text())
    gpumemtrace("check", run.trace, "--budget", budget)
    # A budget written from it has no step limits, and the trace is within it.
    written = tmp_path / "written.toml"
    gpumemtrace("check", run.trace, "--budget", written, "--write")
    assert "unknown: no steps were found" in written.read_text()
    gpumemtrace("check", run.trace, "--budget", written)
