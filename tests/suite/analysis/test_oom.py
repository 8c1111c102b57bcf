"""Out-of-memory errors of real PyTorch: the numbers are PyTorch's, and suggested remedies work."""

import json
from pathlib import Path

import pytest

from conftest import COMMAND, VENVS, WORKLOADS, Run, environment, gpumemtrace, run_program, sentences

MIB = 1 << 20
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def line_of(mark):
    lines = (WORKLOADS / "memory/oom.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# line: {mark}"))


@pytest.fixture
def run_out(run_python, torch_version, tmp_path):
    """Runs out of memory; returns the report's events and PyTorch's numbers."""

    def run(reason, *flags, **extra):
        name = "-".join([reason, *flags, *extra])
        traced = run_python(torch_version, "memory/oom.py", reason, tmp_path / f"{name}.json", *flags, name=name,
                            SIMGPU_MEM="512M", **extra)
        report = traced.report("--oom", "--fragmentation", "--leaks")
        return traced, report, json.loads((tmp_path / f"{name}.json").read_text())

    return run


def only(report, seen, reason):
    """Returns the single event after comparing it with PyTorch's numbers at the error."""
    [oom] = report["oom"]
    assert (Path(oom["site"]["file"]).name, oom["site"]["line"]) == ("oom.py", line_of(reason))
    assert oom["live_bytes"] == seen["allocated"] == sum(site["bytes"] for site in oom["sites"])
    assert oom["reserved_bytes"] == seen["reserved"]
    assert oom["device_free_bytes"] >= seen["free_at_driver"]
    assert oom["largest_free_block_bytes"] == seen["largest_free"].get("0 (0, 0) large", 0)
    assert sum(cause["bytes"] for cause in oom["unused_causes"]) == oom["reserved_bytes"] - seen["allocated"] + rounding(oom)
    return oom


def rounding(oom):
    """Returns the rounding, which is part of the blocks."""
    return sum(cause["bytes"] for cause in oom["unused_causes"] if cause["cause"] == "rounding")


def remedy(oom, *words):
    found = [one for one in oom["remedies"] if all(word in one["action"] for word in words)]
    return found[0]["works"] if found else "not named"


def unused(oom):
    return {cause["cause"]: cause["bytes"] for cause in oom["unused_causes"]}


def test_oom_by_leak_and_not_without_it(run_out):
    traced, report, seen = run_out("leak")
    oom = only(report, seen, "leak" if report["oom"][0]["requested_bytes"] == 12 * MIB else "work")
    grown, *work = oom["growth"]
    assert grown["pattern"] == "repeated" and {row["pattern"] for row in work} <= {"each_step"}
    assert grown["site"]["line"] == line_of("leak")
    assert grown["bytes"] == report["leaks"][0]["bytes"]
    assert remedy(oom, "free what", f"oom.py:{line_of('leak')}") is True
    assert remedy(oom, "expandable_segments") is False
    assert run_out("leak", **EXPANDABLE)[2] is not None
    assert run_out("leak", "--remedied")[2] is None
    assert "helps  free what" in gpumemtrace("replay", traced.trace, "--oom")


def test_oom_by_fragmentation_suggests_expandable_segments(run_out):
    traced, report, seen = run_out("pieces")
    oom = only(report, seen, "pieces")
    assert oom["requested_bytes"] == 100 * MIB <= seen["reserved"] - seen["allocated"]
    assert unused(oom)["pinned"] == seen["reserved"] - seen["allocated"]
    assert oom["cause"] == "no_fitting_block" and "No free block fits" in oom["why"]
    assert oom["shortfall_bytes"] == oom["segment_bytes"] - seen["free_at_driver"] > 0
    assert "less than the segment needs" in oom["why"] and remedy(oom, "use a GPU with") is None
    [refused] = [verdict for verdict in traced.report()["verdicts"] if verdict["kind"] == "failed_calls"]
    assert refused["evidence"]["of_torch"] == refused["evidence"]["calls"] and "PyTorch freed its cache and asked again, and 1 request" in refused["summary"]
    assert remedy(oom, "expandable_segments") is True
    assert run_out("pieces", **EXPANDABLE)[2] is None


def test_oom_by_free_blocks_of_other_stream(run_out):
    traced, report, seen = run_out("stream")
    oom = only(report, seen, "stream")
    assert unused(oom)["stranded_stream"] > oom["requested_bytes"]
    assert remedy(oom, "one stream") is None
    assert run_out("stream", "--remedied")[2] is None


def test_oom_by_free_blocks_of_other_pool(run_out, torch_version):
    traced, report, seen = run_out("pool")
    oom = only(report, seen, "pool")
    assert unused(oom)["stranded_pool"] > oom["requested_bytes"]
    assert remedy(oom, "memory pools") is None
    assert run_out("pool", "--remedied")[2] is None


def test_oom_by_free_bytes_among_small_blocks(run_out):
    traced, report, seen = run_out("small")
    oom = only(report, seen, "small")
    assert unused(oom)["stranded_pool"] == seen["reserved"] - seen["allocated"]
    assert remedy(oom, "memory pools") == "not named"


def test_oom_by_request_larger_than_device(run_out):
    traced, report, seen = run_out("size")
    oom = only(report, seen, "size")
    assert oom["cause"] == "exceeds_device" and "exceeds the GPU" in oom["why"]
    assert not [one for one in oom["remedies"] if one["works"]]
    assert [verdict for verdict in traced.report()["verdicts"] if verdict["kind"] == "oom"]


def growth_line_of(mark):
    lines = (WORKLOADS / "memory/oom_growth.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# line: {mark}"))


def run_grown(folder, torch_version, variant, *flags, options=(), code=1, **extra):
    """Runs a program out of memory; returns the run, its errors and the summary."""
    python = Path(VENVS[torch_version]) / "bin" / "python"
    command = [COMMAND, "run", *options, "--", python, WORKLOADS / "memory/oom_growth.py", variant]
    process = run_program(list(map(str, command)), folder, env=environment(folder, traced=False, SIMGPU_MEM="2G", **extra))
    assert process.returncode == code, process.stderr[-3000:]
    traced = Run(process, folder)
    ooms = traced.report("--oom", *flags)["oom"]
    for oom in ooms:
        assert all(0 < row["bytes"] <= row["held_bytes"] for row in oom["growth"])
        assert sum(row["bytes"] for row in oom["growth"] + oom["unchanged"]) <= oom["live_bytes"]
    return traced, ooms, sentences(gpumemtrace("replay", traced.trace, *flags))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("variant,flags,step,rounds", [
    ("validation", [], 15, 6),
    ("validation", ["--since", "step:15"], 15, 6),
    ("marks", [], 16, 6),
    ("phases", [], 15, 4),
    ("main", [], 15, 6),
], ids=["validation", "since", "marks", "phases", "main"])
def test_line_that_grew_towards_oom_is_first_in_summary(tmp_path, torch_version, variant, flags, step, rounds):
    """A validation loop without no_grad keeps its losses, whatever the steps are."""
    traced, [oom], summary = run_grown(tmp_path, torch_version, variant, *flags)
    grown = oom["growth"][0]
    assert grown["site"]["line"] == growth_line_of("validate") and grown["site"]["function"] == "validate"
    assert grown["bytes"] > oom["live_bytes"] / 2 and grown["bytes"] == grown["held_bytes"]
    # The last round is incomplete, at different blocks with each version of PyTorch.
    assert grown["moments"] in (rounds - 1, rounds)
    assert (grown["pattern"], grown["first_step"]) == ("repeated", step)
    assert grown["frees_older_blocks"] is False
    # Weights and optimizer state did not grow.
    assert growth_line_of("build") in {row["site"]["line"] for row in oom["unchanged"]}
    assert growth_line_of("build") not in {row["site"]["line"] for row in oom["growth"]}
    assert remedy(oom, "free what", f"oom_growth.py:{growth_line_of('validate')}") is True
    assert remedy(oom, "expandable_segments") is False
    findings = summary.index("Out of memory")
    named = summary.index(f"oom_growth.py:{growth_line_of('validate')} in validate()")
    assert findings < summary.index("Grew before the error: +") < named < summary.index("Allocated earlier, not growing: ")
    assert f"allocated {rounds} times since step {step}" in summary
    assert "run --holders" in summary


def test_leak_of_each_step_is_named_with_all_its_blocks(tmp_path, torch_version):
    traced, [oom], summary = run_grown(tmp_path, torch_version, "every_step")
    [leak] = traced.report("--leaks")["leaks"]
    grown = oom["growth"][0]
    assert grown["site"]["line"] == leak["site"]["line"] == growth_line_of("kept")
    assert grown["bytes"] == grown["held_bytes"] == sum(row["bytes"] for row in oom["sites"] if row["site"]["line"] == growth_line_of("kept"))
    assert "cache" not in summary.split("GPU 0 (")[0], "PyTorch's cache did not help"
    # The error comes first, and nothing forecasts it.
    verdicts = traced.report()["verdicts"]
    assert verdicts[0]["kind"] == "oom"
    [growth] = [verdict for verdict in verdicts if verdict["kind"] == "creep_confirmed"]
    assert growth["evidence"]["oom_step"] is None and "expected" not in growth["summary"]
    # On a larger card, the run goes on and needs more.
    fit = sentences(gpumemtrace("fit", traced.trace))
    assert "Smallest known card on which the request that failed gets memory: " in fit
    assert "The run may need a larger one" in fit and "holds the run" not in fit


@pytest.mark.parametrize("setting", [
    {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}, {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
], ids=["async", "no_caching"])
def test_line_that_grew_is_named_if_each_block_is_a_driver_call(tmp_path, torch_version, setting):
    """PyTorch reports no error of its own then: the driver refuses a block, at times twice."""
    traced, [oom], summary = run_grown(tmp_path, torch_version, "validation", **setting)
    grown = oom["growth"][0]
    assert grown["site"]["line"] == growth_line_of("validate") and grown["pattern"] == "repeated"
    assert grown["bytes"] > oom["live_bytes"] / 2 and remedy(oom, "free what", "oom_growth.py") is True
    failed = [call for call in traced.calls() if int(call["rc"]) == 2]
    assert {int(call["size"]) for call in failed} == {oom["requested_bytes"]}
    assert remedy(oom, "expandable_segments") == remedy(oom, "empty_cache") == "not named"
    assert "Grew before the error" in summary.split("Likely leak")[0]


def test_first_request_that_fails_as_a_driver_call_is_an_error(tmp_path, torch_version):
    script = tmp_path / "train.py"
    script.write_text("import torch\ntorch.empty(3 << 30, dtype=torch.uint8, device='cuda')\n")
    env = environment(tmp_path, SIMGPU_MEM="2G", PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
    done = run_program([Path(VENVS[torch_version]) / "bin" / "python", script], tmp_path, env=env)
    assert done.returncode == 1 and "OutOfMemoryError" in done.stderr
    [oom] = Run(done, tmp_path).report("--oom")["oom"]
    assert (oom["requested_bytes"], oom["site"]["line"]) == (3 << 30, 2)


def test_model_that_is_too_big_names_activations_and_no_leak(tmp_path, torch_version):
    traced, [oom], summary = run_grown(tmp_path, torch_version, "too_big")
    [grown] = [row for row in oom["growth"] if row["bytes"] > oom["live_bytes"] / 10]
    assert (grown["site"]["function"], grown["pattern"], grown["moments"]) == ("Block.forward", "once", 1)
    assert remedy(oom, "free what") == "not named"
    [weights] = [row["bytes"] for row in oom["unchanged"] if row["site"]["line"] == growth_line_of("build")]
    assert weights > 512 * MIB
    assert "Grew before the error" in summary and "Likely leak" not in summary and oom["recovered"] is False


def test_error_that_the_program_caught_is_told_apart(tmp_path, torch_version):
    traced, ooms, summary = run_grown(tmp_path, torch_version, "retry", code=0)
    assert [oom["recovered"] for oom in ooms] == [True] * len(ooms)
    assert all(row["pattern"] != "repeated" for oom in ooms for row in oom["growth"])
    assert "the program went on" in summary


def test_equal_errors_are_one_block(tmp_path, torch_version):
    """Three requests of one line fail, then the program is ended by a fourth."""
    traced, ooms, summary = run_grown(tmp_path, torch_version, "again")
    assert len(ooms) == 4 and [oom["recovered"] for oom in ooms] == [True, True, True, False]
    assert "(1 of 4 errors)" in summary
    text = sentences(gpumemtrace("replay", traced.trace, "--oom"))
    assert text.count("Requested at") == 2 and "3 times, " in text and "4 out-of-memory errors in total" in text


def test_holder_of_growth_is_named_if_it_was_scanned(torch_version, tmp_path):
    """A leak that was scanned for holders when memory ran out."""
    traced, [oom], summary = run_grown(tmp_path, torch_version, "every_step", options=["--holders"])
    assert [holder["name"] for holder in oom["growth"][0]["holders"]] == ["oom_growth.losses"]
    assert "Held by oom_growth.losses (list" in summary and "run --holders" not in summary
