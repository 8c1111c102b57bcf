"""A planted leak is reported at its line with exact numbers; a clean training has none."""

import json
import sys
from pathlib import Path

import pytest

from conftest import FULL, REPOSITORY, VENVS, WORKLOADS, environment, gpumemtrace, run_program
from whatif_runs import assert_model_reproduces

LAB = REPOSITORY / "scripts" / "leaklab"
sys.path.insert(0, str(LAB))
import lab  # noqa: E402

#: Fifty runs use one version only.
FIRST_VERSION = next(iter(VENVS), None)

LINE = next(
    number for number, line in enumerate((WORKLOADS / "training/train.py").read_text().splitlines(), 1) if "planted leak" in line
)


@pytest.mark.parametrize("model,bytes_per_step", [("resnet18", 16 * 512 * 4 * 4 * 4), ("mlp", 32 * 256 * 4)])
def test_planted_leak_is_first_with_exact_numbers(run_python, torch_version, model, bytes_per_step):
    run = run_python(torch_version, "training/train.py", "--model", model, "--leak", "hook", "--steps", 12)
    leak = run.report()["leaks"][0]
    assert (leak["site"]["file"], leak["site"]["line"]) == (str(WORKLOADS / "training/train.py"), LINE)
    assert leak["site"]["function"] == "keep_features"
    assert (leak["blocks_per_step"], leak["bytes_per_step"]) == (1, bytes_per_step)
    assert leak["blocks"] in (11, 12)
    assert_model_reproduces(run.trace)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("model", ["mlp", "resnet18", "transformer"])
@pytest.mark.parametrize("amp", [False, True], ids=["fp32", "amp"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_clean_training_has_no_leak(run_python, torch_version, model, amp, optimizer):
    options = ["--amp"] if amp else []
    run = run_python(torch_version, "training/train.py", "--model", model, "--steps", 15, "--optimizer", optimizer, *options)
    assert run.report()["leaks"] == []
    assert_model_reproduces(run.trace)


def test_leaks_set_exit_code_only_on_request(run_python, torch_version):
    run = run_python(torch_version, "training/train.py", "--leak", "hook", "--steps", 12)
    run.report("--leaks", "--fail-on", "leaks", code=3)
    run.report("--leaks", code=0)
    assert json.dumps(run.report("--leaks")["leaks"])


@pytest.mark.parametrize("fixed", [False, True], ids=["leaky", "mended"])
@pytest.mark.parametrize("pattern", lab.PATTERNS)
def test_leak_lab_findings(run_python, torch_version, pattern, fixed):
    """Eight common mistakes: each is the first finding, to the byte; the fixed form has none."""
    stats, options = "stats.json", ["--fixed"] if fixed else []
    run = run_python(torch_version, LAB / "train.py", pattern, *options, "--steps", 34, "--batch", 16, "--stats", stats, **lab.CONF)
    printed = json.loads((run.folder / stats).read_text())
    assert lab.unexpected_findings(pattern, fixed, run.report(), printed) == []
    assert_model_reproduces(run.trace)


@pytest.mark.parametrize("pattern,steps", [("retained_validation", 5), ("grad_scaler", 30)])
def test_plain_leaks_are_found_after_few_steps(run_python, torch_version, pattern, steps):
    run = run_python(torch_version, LAB / "train.py", pattern, "--steps", steps, "--batch", 16)
    first = run.report()["leaks"][0]
    assert (first["site"]["file"], first["site"]["line"]) == lab.line_of(pattern)


def line_of_kind(kind):
    lines = (WORKLOADS / "training/leak_kinds.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# line: {kind}"))


@pytest.mark.parametrize("kind,found_as,bytes_per_step", [
    ("device", "device", 3 << 20), ("pinned", "pinned_host", 1 << 20), ("pools", "reserved", 20 << 20),
    ("gradients", "tensors", None),
])
def test_growth_beside_tensors_is_found(run_python, torch_version, kind, found_as, bytes_per_step):
    run = run_python(torch_version, "training/leak_kinds.py", kind)
    leaks = run.report()["leaks"]
    assert [(leak["kind"], leak["site"]["line"]) for leak in leaks] == [(found_as, line_of_kind(kind))]
    if bytes_per_step:
        assert leaks[0]["bytes_per_step"] == bytes_per_step
    calls = [(call["file"], call["line"]) for call in leaks[0]["backward_calls"]]
    backward = [(str(WORKLOADS / "training/leak_kinds.py"), line_of_kind("backward"))]
    assert calls == (backward if kind == "gradients" else [])


def test_requests_that_outgrow_the_cache_are_growing_sizes(run_python, torch_version):
    """Each request on the side stream is larger than all free blocks there, which stay reserved."""
    run = run_python(torch_version, "training/leak_kinds.py", "stream")
    report = run.report()
    [growth] = report["leak_assessment"][0]["growth"]
    assert report["leaks"] == [] and (growth["class"], growth["memory"]) == ("growing_sizes", "reserved")
    assert growth["site"]["line"] == line_of_kind("stream") and growth["bytes"] > 5 << 30
    assert "Free blocks do not fit the next request" in gpumemtrace("replay", run.trace)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(50 if FULL else 10))
def test_random_healthy_runs_have_no_leak(run_python, seed):
    report = run_python(FIRST_VERSION, "training/healthy.py", seed).report()
    assert report["leaks"] == []


def test_source_of_a_file_that_changed_after_the_run_is_not_shown(torch_version, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import torch\n\nkept = []\nfor step in range(30):\n"
                      "    kept.append(torch.zeros(1 << 20, device='cuda'))  # kept for ever\n    torch.zeros(8, device='cuda')\n")
    done = run_program([Path(VENVS[torch_version]) / "bin" / "python", script], tmp_path, env=environment(tmp_path))
    assert done.returncode == 0, done.stderr
    before = gpumemtrace("replay", tmp_path / "run.trace", "--peak")
    assert "train.py:5" in before and "# kept for ever" in before
    script.write_text("import os\n" + script.read_text())
    after = gpumemtrace("replay", tmp_path / "run.trace", "--peak")
    assert "train.py:5" in after and "# kept" not in after and "range(30)" not in after
