"""Steps, told by what the program does or says: the number found is the number there was."""

from pathlib import Path

import pytest

from conftest import LIBRARY, VENVS, environment, run_program

RANGES = {"NVTX_INJECTION64_PATH": str(LIBRARY)}


def steps_of(run):
    true = int(run.process.stdout.splitlines()[-1])
    report = run.report()
    assert report["traces"][0]["complete"]
    return report["steps"], true, report


@pytest.mark.parametrize("way", ["plain", "amp", "accumulate", "gan"])
def test_optimizers_tell_steps(run_python, torch_version, way):
    found, true, report = steps_of(run_python(torch_version, "steps.py", way))
    assert (found["source"], found["count"]) == ("optimizer", true)
    assert report["leaks"] == []


@pytest.mark.parametrize("model", ["resnet18", "transformer"])
def test_of_other_models_too(run_python, torch_version, model):
    found, true, _ = steps_of(run_python(torch_version, "steps.py", "plain", "--model", model))
    assert (found["source"], found["count"]) == ("optimizer", true)


def test_ranges_that_are_called_steps_are_steps(run_python, torch_version):
    found, true, report = steps_of(run_python(torch_version, "steps.py", "ranges", "--leak", **RANGES))
    assert (found["source"], found["count"], found["range"]) == ("nvtx", true, "train step #")
    leak = report["leaks"][0]
    assert (leak["site"]["file"].rsplit("/", 1)[-1], leak["bytes_per_step"]) == ("steps.py", 4096)


def test_marks_come_before_everything_else(run_python, torch_version):
    found, true, report = steps_of(run_python(torch_version, "steps.py", "marks", "--leak"))
    assert (found["source"], found["count"]) == ("marks", true)
    assert report["leaks"][0]["bytes_per_step"] == 4096


def test_ranges_without_a_gpu_begin_no_recording(torch_version, tmp_path):
    code = "import torch; torch.cuda.nvtx.range_push('step'); torch.cuda.nvtx.range_pop()"
    python = Path(VENVS[torch_version]) / "bin" / "python"
    run_program([python, "-c", code], tmp_path, env=environment(tmp_path, **RANGES), check=True)
    assert not list(tmp_path.glob("*.trace*"))
