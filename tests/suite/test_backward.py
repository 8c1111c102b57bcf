"""What backward threads allocate is shown at the line that called backward(): they have no Python frames of their own."""

import pytest

from conftest import WORKLOADS


def line_of(script, text):
    lines = (WORKLOADS / script).read_text().splitlines()
    return [number for number, line in enumerate(lines, 1) if text in line]


def stackless_bytes(run):
    return sum(event["size"] for event in run.events() if event["kind"] == "block_alloc" and event["python"] == 0)


@pytest.mark.parametrize("model", ["mlp", "resnet18", "transformer"])
def test_gradients_are_of_the_line_that_calls_backward(run_python, torch_version, model):
    run = run_python(torch_version, "train.py", "--model", model)
    assert stackless_bytes(run) > 0
    report = run.report()
    sites = next(peak for peak in report["peak"] if peak["layer"] == "torch")["sites"]
    [line] = line_of("train.py", ".backward()")
    assert line in [entry["site"]["line"] for entry in sites]
    assert all(entry["site"]["file"] for entry in sites), "every byte has a line"
    assert any("backward threads" in note for note in report["traces"][0]["notes"])

