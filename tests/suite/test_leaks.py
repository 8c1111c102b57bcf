"""A planted leak is named by its line, with its exact numbers; a clean training has none."""

import json

import pytest

from conftest import WORKLOADS

LINE = next(
    number for number, line in enumerate((WORKLOADS / "train.py").read_text().splitlines(), 1) if "planted leak" in line
)


@pytest.mark.parametrize("model,bytes_per_step", [("resnet18", 16 * 512 * 4 * 4 * 4), ("mlp", 32 * 256 * 4)])
def test_the_planted_line_is_the_first_leak_with_its_exact_numbers(run_python, torch_version, model, bytes_per_step):
    run = run_python(torch_version, "train.py", "--model", model, "--leak", "hook", "--steps", 12)
    leak = run.report()["leaks"][0]
    assert (leak["site"]["file"], leak["site"]["line"]) == (str(WORKLOADS / "train.py"), LINE)
    assert leak["site"]["function"] == "keep_features"
    assert (leak["blocks_per_step"], leak["bytes_per_step"]) == (1, bytes_per_step)
    assert leak["blocks"] in (11, 12)


@pytest.mark.parametrize("model", ["mlp", "resnet18", "transformer"])
@pytest.mark.parametrize("amp", [False, True], ids=["fp32", "amp"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_clean_training_has_no_leak(run_python, torch_version, model, amp, optimizer):
    options = ["--amp"] if amp else []
    run = run_python(torch_version, "train.py", "--model", model, "--steps", 15, "--optimizer", optimizer, *options)
    assert run.report()["leaks"] == []


def test_findings_have_an_exit_code_only_when_asked(run_python, torch_version):
    run = run_python(torch_version, "train.py", "--leak", "hook", "--steps", 12)
    run.report("--leaks", "--fail-on", "leak", code=3)
    run.report("--leaks", code=0)
    assert json.dumps(run.report("--leaks")["leaks"])
