"""PyTorch on Apple GPUs: samples of torch.mps, and one program compared between MPS and CUDA.

The MPS side is the double of Metal (tests/metal/metal_double.m) with an allocator like PyTorch's
(tests/metal/mps_allocator.py); that allocator's counts are the ground truth. The CUDA side is real
PyTorch on the simulated GPU, checked by `memory_stats()`. None of this has run on a Mac.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from conftest import REPOSITORY, VENVS, environment, gpumemtrace, run_program, sentences
from spec_reader import Trace
from metal_runs import GOLDEN, METAL, built, marked_lines, run
from spec_reader_check import compare as assert_the_specification_reads_it

PACKAGE = REPOSITORY / "python"
BOTH = METAL / "leak_patterns.py"
MIB = 1 << 20
#: Words of the CUDA backend that no report of an Apple GPU contains.
OF_CUDA = r"torch\.cuda|cuda|PYTORCH_ALLOC_CONF|PYTORCH_CUDA|from the driver|driver call|driver memory|reserved by PyTorch|PyTorch held|\bsegment"
SECTIONS = ["--leaks", "--fragmentation", "--peak", "--timeline", "--oom"]


def schema(name):
    return json.loads(gpumemtrace("schema", name))


def texts_of(trace, code=0):
    """Returns the report, and all text that the command prints for a trace."""
    report = json.loads(gpumemtrace("replay", trace, "--json", code=code))
    jsonschema.validate(report, schema("report"))
    printed = [verdict["summary"] for verdict in report["verdicts"]] + [note["message"] for note in report["traces"][0]["notes"]]
    printed += [gpumemtrace("replay", trace, *flags, code=code) for flags in ([], SECTIONS)]
    return report, sentences(" ".join(printed))


def sampled(folder, *arguments, **how):
    done = run(folder, sys.executable, METAL / "torch_mps_samples.py", *arguments, PYTHONPATH=PACKAGE, **how)
    return done, json.loads(done.process.stdout)


def span(values):
    return {"samples": len(values), "least": min(values), "most": max(values), "last": values[-1]}


@pytest.mark.long
def test_samples_equal_allocator_counts_beside_metal_bytes(tmp_path):
    done, truth = sampled(tmp_path, 30)
    steps = truth["steps"]
    assert done.process.stderr == "", "torch.mps fails if queried before its first use"
    assert Trace([done.trace]).torch_memory() == [(one["allocated"], one["reserved"] + truth["beside"]) for one in steps]
    report, text = texts_of(done.trace)
    memory, = report["torch_memory"]
    points = [(point["tensor_bytes"], point["driver_bytes"], point["metal_bytes"], point["heap_bytes"], point["buffer_bytes"])
              for point in memory["points"]]
    assert points == [(one["allocated"], one["reserved"] + truth["beside"], one["reserved"], one["reserved"],
                       one["allocated"] + one["cached"]) for one in steps]
    assert (memory["samples"], memory["device"], memory["source"]) == (30, 0, "torch.mps")
    assert memory["tensor_bytes"] == span([one["allocated"] for one in steps])
    assert memory["driver_bytes"] == span([one["reserved"] + truth["beside"] for one in steps])
    assert memory["unused_buffer_bytes"] == span([one["cached"] for one in steps]) and max(one["cached"] for one in steps) == 12 * MIB
    assert memory["unrecorded_bytes"] == span([truth["beside"]] * 30)
    assert "sampled 30 times: allocated: at most 10.30 MiB" in text and "sampled 30 times" in text
    assert "not in any recorded call of Metal: 3.00 MiB" in text
    assert report["traces"][0]["events"]["torch_memory"] == 30
    assert_the_specification_reads_it(Trace([done.trace]), done.trace)
    since = json.loads(gpumemtrace("replay", done.trace, "--timeline", "--since", "step:20", "--json"))
    assert since["torch_memory"][0]["samples"] < 30 and since["torch_memory"][0]["points"][0]["step"] >= 20


@pytest.mark.long
@pytest.mark.parametrize("wrong", ["raises", "odd"])
def test_failing_torch_mps_is_unknown_and_harmless(tmp_path, wrong):
    done, truth = sampled(tmp_path, 30, wrong)
    assert len(truth["steps"]) == 30
    line, = done.process.stderr.splitlines()
    assert line.startswith("gpumemtrace: torch.mps.current_allocated_memory()")
    report, text = texts_of(done.trace)
    memory, = report["torch_memory"]
    assert (memory["samples"], memory["tensor_bytes"]["samples"], memory["driver_bytes"]["samples"]) == (30, 20, 30)
    assert [point["tensor_bytes"] is None for point in memory["points"]] == [number % 3 == 2 for number in range(30)]
    assert [tensors is None for tensors, _ in Trace([done.trace]).torch_memory()] == [number % 3 == 2 for number in range(30)]
    assert memory["tensor_bytes"]["least"] > 0 and "(no answer 10 times)" in text


@pytest.mark.long
def test_untraced_program_is_not_sampled(tmp_path):
    traced, untraced = tmp_path / "traced", tmp_path / "untraced"
    traced.mkdir(), untraced.mkdir()
    done, truth = sampled(untraced, 20, traced=False)
    assert not done.trace.exists() and done.process.stderr == ""
    assert sampled(traced, 20)[1] == truth


@pytest.mark.parametrize("trace", [GOLDEN / "metal-retained.trace"])
def test_missing_samples_are_reported_as_unknown(trace):
    report, text = texts_of(trace)
    memory, = report["torch_memory"]
    assert memory["samples"] == 0 and memory["points"] == []
    assert {key for key, value in memory.items() if value is None} == {
        "device", "tensor_bytes", "driver_bytes", "unrecorded_bytes", "unused_buffer_bytes"}
    assert "Allocated bytes inside these buffers are unknown" in text and "Unknown: PyTorch was never sampled" in text
    assert re.findall(OF_CUDA, text) == [], text


def leak_lab(folder, backend, pattern, steps=48, options=(), program="program", **extra):
    """Traces one pattern of leak_patterns.py.

    Returns the trace and, per step, the bytes that the allocator holds, reserves and the program
    keeps. The stand-in for PyTorch lies in site-packages. `program` names the script's folder; by
    default both backends use the same one.
    """
    folder.mkdir()
    home = folder.parent / program
    packages = home / "site-packages"
    packages.mkdir(parents=True, exist_ok=True)
    for name in ("mps_allocator.py", "metal_double.py"):
        shutil.copy(METAL / name, packages)
    shutil.copy(BOTH, home)
    command = [home / BOTH.name, backend, pattern, str(steps), *options]
    path = f"{packages}:{PACKAGE}"
    if backend == "mps":
        done = run(folder, sys.executable, *command, PYTHONPATH=path, **extra)
        return done.trace, json.loads(done.process.stdout), done.process
    python = Path(next(iter(VENVS.values()))) / "bin" / "python"
    done = run_program([python, *command], folder, env=environment(folder, PYTHONPATH=path, **extra))
    assert done.returncode == 0, done.stderr
    return folder / "run.trace", json.loads(done.stdout), done


def growth(rows, side, column):
    """Returns the growth per step of one column, over the steps that the comparison covers (from
    1)."""
    first, last = side["first_step"], side["last_step"]
    return (rows[last - 1][column] - rows[first - 1][column]) / (last - first)


def line_of(comment):
    line, = (number for number, what in marked_lines(BOTH).items() if what == comment)
    return line


def compared(cuda, mps):
    comparison = json.loads(gpumemtrace("compare", cuda, mps, "--json"))
    jsonschema.validate(comparison, schema("comparison"))
    turned = json.loads(gpumemtrace("compare", mps, cuda, "--json"))["across_backends"]
    across = comparison["across_backends"]
    assert (across["backends"], turned["backends"]) == (["cuda", "mps"], ["mps", "cuda"])
    assert turned["devices"] == [list(reversed(row)) for row in across["devices"]], "the order of arguments does not matter"
    assert turned["pinned_per_leaked_tensor_byte"] == list(reversed(across["pinned_per_leaked_tensor_byte"]))
    row, = across["devices"]
    return across, row


def reads(site):
    return Path(site["file"]).name, site["line"]


@pytest.fixture
def needs_both():
    built()
    if not VENVS:
        pytest.fail("GPUMEMTRACE_VENVS is not set: scripts/test makes the environments")


@pytest.mark.long
@pytest.mark.parametrize("pattern, elsewhere", [("forward_hook", "program"), ("zero_grad", "checkout")])
def test_leak_on_two_backends_is_one_row(tmp_path, needs_both, pattern, elsewhere):
    cuda, cuda_printed, _ = leak_lab(tmp_path / "cuda", "cuda", pattern)
    mps, mps_printed, _ = leak_lab(tmp_path / "mps", "mps", pattern, program=elsewhere)
    across, row = compared(cuda, mps)
    for side, printed in zip(row, (cuda_printed, mps_printed)):
        assert side["leaked_bytes_per_step"] == pytest.approx(growth(printed, side, 0)), "only the leak grows"
        assert growth(printed, side, 2) <= side["leaked_bytes_per_step"] < 1.05 * growth(printed, side, 2), "bytes that the program keeps, in blocks"
        assert side["pinned_bytes_per_step"] == pytest.approx(growth(printed, side, 1)), "bytes that the allocator reserved"
        assert side["amplification"] == pytest.approx(growth(printed, side, 1) / growth(printed, side, 0)) and side["unknown"] is None
        least, most = side["amplification_interval"]
        assert least < side["amplification"] < most and side["other_growth_bytes_per_step"] == 0
        assert side["device_bytes_per_step"] == side["pinned_bytes_per_step"]
    assert row[0]["sampled_tensor_bytes_per_step"] is None, "torch.mps is not sampled on CUDA"
    assert row[1]["sampled_tensor_bytes_per_step"] == pytest.approx(growth(mps_printed, row[1], 0))
    leak, = across["leaks"]
    assert {reads(leak[run]["site"]) for run in ("before", "after")} == {("leak_patterns.py", line_of(pattern))}
    assert leak["before"]["bytes_per_step"] == leak["after"]["bytes_per_step"]
    text = sentences(gpumemtrace("compare", cuda, mps))
    assert f"leak_patterns.py:{line_of(pattern)} in" in text and "Not comparable between the backends" in text
    assert "not found" not in text


@pytest.mark.long
def test_small_tensor_in_large_buffer_pins_more_on_mps(tmp_path, needs_both):
    """The reported line is where the waste happens; its cost shows up at another line."""
    cuda, cuda_printed, _ = leak_lab(tmp_path / "cuda", "cuda", "reused")
    mps, mps_printed, _ = leak_lab(tmp_path / "mps", "mps", "reused")
    across, row = compared(cuda, mps)
    leaked = growth(cuda_printed, row[0], 2)
    assert row[0]["leaked_bytes_per_step"] == pytest.approx(leaked) == 5 * MIB / 2
    assert row[1]["leaked_bytes_per_step"] == pytest.approx(growth(mps_printed, row[1], 2)) == 6 * MIB, "the buffers that are kept"
    ratios = across["pinned_per_leaked_tensor_byte"]
    assert ratios == [pytest.approx(growth(printed, side, 1) / leaked) for side, printed in zip(row, (cuda_printed, mps_printed))]
    assert ratios[1] > 2 * ratios[0]
    found = {run: [reads(leak[run]["site"]) for leak in across["leaks"] if leak[run]] for run in ("before", "after")}
    assert found == {"before": [("leak_patterns.py", line_of("reused"))], "after": [("leak_patterns.py", line_of("needs_a_new_one"))]}
    sites = next(one for one in across["not_comparable"] if one["kind"] == "call_sites")
    assert "a later tensor that reuses it may leak" in sites["message"]


@pytest.mark.long
def test_heap_per_tensor_pins_only_leaked_bytes(tmp_path, needs_both):
    cuda, *_ = leak_lab(tmp_path / "cuda", "cuda", "own_heaps")
    mps, *_ = leak_lab(tmp_path / "mps", "mps", "own_heaps", HEAP_OF_ITS_OWN=1)
    across, row = compared(cuda, mps)
    assert row[1]["amplification"] == 1 and row[1]["leaked_bytes_per_step"] == 5 * MIB / 2
    leak, = across["leaks"]
    assert reads(leak["after"]["site"]) == ("leak_patterns.py", line_of("reused"))


@pytest.mark.long
def test_fixed_program_has_no_amplification(tmp_path, needs_both):
    cuda, *_ = leak_lab(tmp_path / "cuda", "cuda", "forward_hook")
    mps, *_ = leak_lab(tmp_path / "mps", "mps", "forward_hook", options=["--mended"])
    across, (_, mended) = compared(cuda, mps)
    assert mended["amplification"] is None and mended["unknown"] == "no_leak" and mended["leaked_bytes_per_step"] is None
    leak, = across["leaks"]
    assert leak["after"] is None and across["pinned_per_leaked_tensor_byte"][1] is None
    assert "MPS: reserved per leaked byte is unknown: no leak was found." in sentences(gpumemtrace("compare", cuda, mps))


def test_same_backend_comparison_has_no_backend_section(tmp_path):
    golden = GOLDEN / "metal-retained.trace"
    comparison = json.loads(gpumemtrace("compare", golden, golden, "--json"))
    assert "across_backends" not in comparison and not comparison["differs"]
    both = json.loads(gpumemtrace("compare", GOLDEN / "cuda-train.trace", GOLDEN / "cuda-train.trace", "--json"))
    assert "across_backends" not in both
    different = gpumemtrace("compare", golden, GOLDEN / "metal-forward-hook.trace")
    assert "peak of Metal heaps" in different and "peak of Metal " in different
    assert re.findall(OF_CUDA, different) == []


@pytest.mark.long
def test_oom_on_metal_uses_metal_terms(tmp_path):
    """Metal refuses more heaps: the report names the line and claims nothing else."""
    trace, printed, process = leak_lab(tmp_path / "mps", "mps", "forward_hook", 400, DOUBLE_LIMIT=200 * MIB)
    assert "MPS backend out of memory" in process.stderr and len(printed) < 400 and printed[-1][1] <= 200 * MIB
    report, text = texts_of(trace)
    failed, = (verdict for verdict in report["verdicts"] if verdict["kind"] == "failed_calls")
    refused = int(re.search(r"(\d+) heaps were refused", process.stderr)[1])
    assert refused >= 2 and (failed["evidence"]["calls"], failed["evidence"]["out_of_memory"]) == (refused, None)
    assert f"{refused} Metal allocations failed, first at" in failed["summary"]
    assert re.search(r"leak_patterns\.py:\d+ in forward\(\)", failed["summary"]) and "PYTORCH_MPS_HIGH_WATERMARK_RATIO" in text and "no out-of-memory errors" not in text
    assert re.findall(OF_CUDA, text) == [], text
    assert "torch.mps.empty_cache()" in text or "cache" not in {cause["cause"] for gap in report["fragmentation"] for cause in gap["causes"]}


GOLDENS = {"forward_hook": "forward_hook", "zero_grad": "zero_grad", "reused": "needs_a_new_one"}


@pytest.mark.parametrize("pattern", list(GOLDENS))
def test_golden_traces_of_leak_patterns(pattern):
    """scripts/generate/metal-golden made these traces with CPython 3.11."""
    golden = GOLDEN / f"metal-{pattern.replace('_', '-')}.trace"
    report, text = texts_of(golden)
    found = report["leaks"]
    assert {leak["kind"] for leak in found} == {"tensors"}, "heaps count as PyTorch's memory"
    assert [(leak["site"]["file"].rsplit("/", 1)[1], leak["site"]["line"]) for leak in found] == [("train.py", line_of(GOLDENS[pattern]))]
    kept, period = {"forward_hook": (2 * MIB, 1), "zero_grad": (4 * MIB, 4), "reused": (6 * MIB, 1)}[pattern]
    assert (found[0]["bytes_per_step"], found[0]["period_steps"]) == (kept / period, period)
    memory, = report["torch_memory"]
    steps = report["steps"]["count"]
    assert memory["samples"] == steps and memory["unrecorded_bytes"] == {"samples": steps, "least": 0, "most": 0, "last": 0}
    assert "agree in every sample" in text and re.findall(OF_CUDA, text) == []
    assert golden.stat().st_size < 16_000
    assert_the_specification_reads_it(Trace([golden]), golden)


@pytest.mark.long
@pytest.mark.parametrize("pattern", list(GOLDENS))
def test_metal_golden_script_reproduces_golden_traces(tmp_path, pattern):
    library, double, _ = built()
    script = [sys.executable, REPOSITORY / "scripts" / "generate" / "metal-golden", "--library", library, "--double", double, tmp_path, pattern]
    subprocess.run(script, check=True, capture_output=True)
    name = f"metal-{pattern.replace('_', '-')}.trace"

    def event_fields(trace):
        return [(line["kind"], line["dev"], line["size"], line["aux0"], line["aux1"]) for line in map(fields, dumped(trace))]

    assert event_fields(tmp_path / name) == event_fields(GOLDEN / name)


def dumped(trace):
    return [line for line in gpumemtrace("dump", trace).splitlines() if line.startswith("seq=")]


def fields(line):
    return dict(part.split("=", 1) for part in line.split() if "=" in part)
