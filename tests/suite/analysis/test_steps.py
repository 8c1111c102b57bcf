"""Step boundaries from optimizers, ranges, marks or repetition, compared with the true number."""

import json
from pathlib import Path

import pytest

from conftest import LIBRARY, VENVS, environment, gpumemtrace, run_program

RANGES = {"NVTX_INJECTION64_PATH": str(LIBRARY)}


def steps_of(run):
    true = int(run.process.stdout.splitlines()[-1])
    report = run.report()
    assert report["traces"][0]["complete"]
    return report["steps"], true, report


@pytest.mark.parametrize("way", ["plain", "amp", "accumulate", "gan"])
def test_steps_from_optimizers(run_python, torch_version, way):
    found, true, report = steps_of(run_python(torch_version, "training/steps.py", way))
    assert (found["source"], found["count"]) == ("optimizer", true)
    assert report["leaks"] == []


@pytest.mark.parametrize("model", ["resnet18", "transformer"])
def test_steps_of_other_models(run_python, torch_version, model):
    found, true, _ = steps_of(run_python(torch_version, "training/steps.py", "plain", "--model", model))
    assert (found["source"], found["count"]) == ("optimizer", true)


def test_steps_from_ranges_named_step(run_python, torch_version):
    found, true, report = steps_of(run_python(torch_version, "training/steps.py", "ranges", "--leak", **RANGES))
    assert (found["source"], found["count"], found["range"]) == ("nvtx", true, "train step #")
    leak = report["leaks"][0]
    assert (leak["site"]["file"].rsplit("/", 1)[-1], leak["bytes_per_step"]) == ("steps.py", 4096)


def test_marks_override_other_step_sources(run_python, torch_version):
    found, true, report = steps_of(run_python(torch_version, "training/steps.py", "marks", "--leak"))
    assert (found["source"], found["count"]) == ("marks", true)
    assert report["leaks"][0]["bytes_per_step"] == 4096


@pytest.mark.parametrize("model", ["mlp", "transformer"])
def test_steps_from_repetition(run_python, torch_version, model):
    found, true, report = steps_of(run_python(torch_version, "training/steps.py", "serve", "--model", model))
    assert (found["source"], found["count"]) == ("period", true)
    assert report["leaks"] == []


def found_by(run):
    """Returns the source and number of steps, and the true number."""
    found, true, _ = steps_of(run)
    return found["source"], found["count"], true


ALLOCATORS = {
    "default": {},
    "async": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    "no cache": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    "expandable segments": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind, source", [("adam", "optimizer"), ("sgd", "optimizer"), ("loop", "period")])
def test_steps_are_equal_under_every_allocator(run_python, torch_version, kind, source):
    program = ["requests_of_varying_shape"] if kind == "loop" else ["optimizer", kind, "top", "none", "1"]
    for name, variables in ALLOCATORS.items():
        run = run_python(torch_version, "training/step_counts.py", *program, name=name, **variables)
        found, count, true = found_by(run)
        assert (found, count) == (source, true), name


@pytest.mark.sampled(2)
@pytest.mark.parametrize("program", [
    "optimizer sgd top none 1",
    "optimizer sgd middle none 1",
    "optimizer sgd end none 1",
    "optimizer sgd top none 4",
    "optimizer sgd top none 1 amp",
    "optimizer momentum top none 1",
    "optimizer momentum end none 4",
    "optimizer adam top none 1",
    "optimizer adam end zero 1",
    "optimizer adam_forloop top none 1",
    "optimizer adamw_fused top none 1",
    "optimizer rmsprop end zero 4 amp",
    "gan",
])
def test_optimizer_calls_are_counted_exactly(run_python, torch_version, program):
    source, count, true = found_by(run_python(torch_version, "training/step_counts.py", *program.split()))
    assert (source, count) == ("optimizer", true)


@pytest.mark.parametrize("program", [
    "optimizer sgd top zero 1",
    "optimizer momentum end zero 1",
    "requests_of_varying_shape",
    "two_parts_per_request",
    "generation",
    "epochs_of_batches",
    "evaluation_inside",
])
def test_iterations_of_the_outermost_loop_are_steps(run_python, torch_version, program):
    source, count, true = found_by(run_python(torch_version, "training/step_counts.py", *program.split()))
    assert (source, count) == ("period", true)


def test_list_of_buffers_is_no_loop(run_python, torch_version):
    assert found_by(run_python(torch_version, "training/step_counts.py", "list_of_buffers")) == (None, None, 0)


@pytest.mark.parametrize("program", ["loader_thread", "worker_threads"])
def test_steps_do_not_depend_on_the_timing_of_threads(run_python, torch_version, program):
    for turn in range(5):
        source, count, true = found_by(run_python(torch_version, "training/step_counts.py", program, name=f"run {turn}"))
        assert (source, count) == ("period", true)


#: Loops of servers, the function with the loop, and the number of threads that run it.
SERVERS = [("routes", "routes", 1), ("table", "table", 1), ("methods", "methods", 1), ("threads", "work", 3),
           ("coroutine", "serve", 1), ("scheduler", "scheduler", 1)]


@pytest.mark.every_torch
@pytest.mark.parametrize("program, function, threads", SERVERS)
def test_requests_with_different_paths_are_counted_at_the_loop(run_python, torch_version, program, function, threads):
    run = run_python(torch_version, "serving/request_loops.py", program)
    found, true, report = steps_of(run)
    site = found["site"]
    assert (found["source"], site["function"].rsplit(".", 1)[-1]) == ("period", function)
    # Before the first call of a thread, no result may be freed that shows that it is a new call.
    assert true - threads <= found["count"] <= true
    assert sum(leak["bytes_per_step"] for leak in report["leaks"]) == pytest.approx(4096, rel=0.03)
    text = gpumemtrace("replay", run.trace)
    assert "Steps were detected from repeated calls at " in text
    assert f"request_loops.py:{site['line']} in {site['function']}(); gpumemtrace.step() marks them" in text


@pytest.mark.parametrize("program", ["interleaved_coroutines", "optional_stages", "branches"])
def test_calls_that_may_be_parts_of_an_iteration_are_no_steps(run_python, torch_version, program):
    source, count, _ = found_by(run_python(torch_version, "serving/request_loops.py", program))
    assert (source, count) == (None, None)


def test_phase_bytes_equal_pytorch(run_python, torch_version):
    run = run_python(torch_version, "training/steps.py", "phases", "--phases", "phases.json")
    found, true, report = steps_of(run)
    assert (found["source"], found["count"]) == ("optimizer", true)
    turns = json.loads((run.folder / "phases.json").read_text())
    assert [phase["name"] for phase in report["phases"]] == ["train", "eval of epoch #"]
    for phase in report["phases"]:
        own = [turn for turn in turns if turn[0].startswith(phase["name"].split()[0])]
        assert phase["count"] == len(own) == 3 and phase["time_ns"] > 0
        peak, left = max(turn[2] for turn in own), sum(turn[3] - turn[1] for turn in own)
        assert phase["devices"] == [{"device": 0, "peak_live_bytes": peak, "net_bytes": left}]
    assert report["phases"][1]["devices"][0]["net_bytes"] > 0
    text = gpumemtrace("replay", run.trace)
    assert "  train: 3 times, " in text and "  eval of epoch #: 3 times, " in text and "net growth" in text


def test_ranges_without_gpu_start_no_recording(torch_version, tmp_path):
    code = "import torch; torch.cuda.nvtx.range_push('step'); torch.cuda.nvtx.range_pop()"
    python = Path(VENVS[torch_version]) / "bin" / "python"
    run_program([python, "-c", code], tmp_path, env=environment(tmp_path, **RANGES), check=True)
    assert not list(tmp_path.glob("*.trace*"))
