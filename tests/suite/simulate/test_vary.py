"""The largest value of an argument on a simulated card, and the smallest card of a simulated run."""

import json
import subprocess

import pytest
from conftest import COMMAND, WORKLOADS, gpumemtrace
from support.simulated import clean_environment, make_stock_environment, simulate_program

#: A batch needs 64 MiB a row for activations, beside 64 MiB of parameters and Adam's states.
TRAIN = """
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--fail-at", type=int, default=10**9)
arguments = parser.parse_args()
if arguments.batch_size >= arguments.fail_at:
    raise SystemExit("this batch is not for me")
model = torch.nn.Linear(4096, 4096, bias=False, device="cuda")
optimizer = torch.optim.Adam(model.parameters(), foreach=False)
for step in range(1000):
    x = torch.empty(arguments.batch_size, 4096, 4096, device="cuda")
    model(x).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    del x
"""
MIB = 1 << 20


@pytest.fixture
def stock(torch_version, tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    return make_stock_environment(torch_version, tmp_path / "stock")


def vary(folder, stock, *arguments, code=0, program=("train.py",)):
    command = [COMMAND, "simulate", *map(str, arguments), "--", stock / "bin" / "python", *program]
    env = clean_environment() | {"XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


def runs_without_error(folder, stock, batch, card):
    """Runs the program by itself on the card; returns whether it had no out-of-memory error."""
    program = TRAIN.replace("parser.parse_args()", f'parser.parse_args(["--batch-size", "{batch}"])')
    arguments = ("--card", card, "--steps", 3, "--no-report", "-o", folder / "check.trace")
    command = [COMMAND, "simulate", *map(str, arguments), "--", stock / "bin" / "python", "-c", program]
    env = clean_environment() | {"XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 or "OutOfMemoryError" in done.stderr, done.stderr
    return done.returncode == 0


@pytest.mark.long
def test_largest_batch_is_that_of_real_runs(stock, tmp_path):
    text, said = vary(tmp_path, stock, "--vary", "batch-size=10..24", "--card", "4GiB", "--json", "--alloc-conf", "max_split_size_mb:64")
    answer = json.loads(text)
    assert (answer["schema"], answer["argument"], answer["card_bytes"]) == ("gpumemtrace.largest", "batch-size", 4 << 30)
    now, split = answer["settings"]
    assert (now["setting"], split["setting"]) == (None, "max_split_size_mb:64")
    largest = now["largest"]
    assert 10 < largest < 24
    assert runs_without_error(tmp_path, stock, largest, "4GiB")
    assert not runs_without_error(tmp_path, stock, largest + 1, "4GiB")
    for run in now["runs"]:
        assert run["fits"] == (run["value"] <= largest) == (run["first_failure"] is None)
        if run["fits"]:
            used = run["peak_reserved_bytes"] + run["headroom_bytes"]
            # The rest is the context and the cuBLAS handle.
            assert 500 * MIB < (4 << 30) - used < 700 * MIB
        assert f"batch-size {run['value']}: " in said
    failing = next(run for run in now["runs"] if run["value"] == largest + 1)
    assert failing["first_failure"]["site"]["file"].endswith("train.py")


@pytest.mark.long
def test_text_names_the_setting_that_helps(stock, tmp_path):
    text, _ = vary(tmp_path, stock, "--vary", "batch-size=8..32:8", "--card", "4GiB", "--alloc-conf", "expandable_segments:True")
    assert "batch-size: a card like the H100 (SXM), simulated, 4.00 GiB, PyTorch" in text
    assert "current settings" in text and "expandable_segments:True" in text
    assert "out of memory in step" in text and "requested at train.py:" in text
    assert "Largest batch-size that fits on a card like the H100 (SXM), " in text


@pytest.mark.slow("a search runs the program several times")
def test_library_without_memory_does_not_fit(stock, tmp_path):
    """PyTorch's blocks leave too little of the card for a handle of cuBLAS."""
    text, _ = vary(tmp_path, stock, "--vary", "batch-size=26..26", "--card", "4GiB", "--json", "--alloc-conf", "expandable_segments:True")
    _, expandable = json.loads(text)["settings"]
    [run] = expandable["runs"]
    assert expandable["largest"] is None and not run["fits"]
    failure = run["first_failure"]
    assert 64 * MIB <= failure["request_bytes"] < 65 * MIB and failure["site"]["file"].endswith("train.py")
    # From the start of the recording, not of the clock.
    assert 0 < failure["time_ns"] < 600 * 10**9


def test_range_that_fits_takes_its_last_value(stock, tmp_path):
    text, said = vary(tmp_path, stock, "--vary", "batch-size=3..3", "--card", "H200", "--alloc-conf", "")
    assert "Largest batch-size that fits on NVIDIA H200, 139.72 GiB: 3" in text
    assert said.count("batch-size 3") == 2


@pytest.mark.slow("a search runs the program several times")
def test_failure_of_the_program_is_not_too_little_memory(stock, tmp_path):
    _, said = vary(tmp_path, stock, "--vary", "batch-size=1..64", "--card", "H200", code=2, program=("train.py", "--fail-at", "4"))
    assert "train.py --fail-at 4 --batch-size 4: failed with exit code 1, and not for lack of GPU memory" in said
    assert "\n  this batch is not for me\ngpumemtrace: simulate: " in said


#: The handle of cuBLAS comes after the peak, when PyTorch keeps its blocks.
LATE_LIBRARY = """
import torch
blocks = [torch.empty(64 << 20, dtype=torch.uint8, device="cuda") for _ in range(20)]
del blocks
weight = torch.randn(512, 512, device="cuda")
weight @ weight
"""


@pytest.mark.slow("compares with two real runs")
@pytest.mark.parametrize(("program", "error"), [("gpt", "OutOfMemoryError"), ("late library", "CUBLAS_STATUS_ALLOC_FAILED")])
def test_smallest_card_of_a_simulated_run_is_that_of_real_runs(stock, tmp_path, program, error):
    """The card of a simulated run also holds its context and the handles of cuBLAS."""
    program = (WORKLOADS / "families" / "language" / "gpt.py").read_text() if program == "gpt" else LATE_LIBRARY
    simulate = ("--steps", 3, "--no-report")
    env = {"PYTHONPATH": str(WORKLOADS / "families")}
    simulate_program(tmp_path, stock, program, "--card", "H100", *simulate, "-o", "run.trace", **env)
    rows = json.loads(gpumemtrace("fit", tmp_path / "run.trace", "--alloc-conf", "", "--json"))["rows"]
    smallest = next(row["card_bytes"] for row in rows if row["ooms"] == 0)
    simulate_program(tmp_path, stock, program, "--card", f"{smallest >> 20}MiB", *simulate, "-o", "fits.trace", **env)
    too_small = f"{(smallest >> 20) - 2}MiB"
    _, said = simulate_program(tmp_path, stock, program, "--card", too_small, *simulate, "-o", "fails.trace", code=1, **env)
    assert error in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--json"], "--vary"),
        (["--vary", "batch-size", "--card", "H100"], "expected a name and a range, such as batch-size=1..512"),
        (["-o", "run.trace", "--vary", "b=1..4"], "cannot be used with"),
        (["--vary", "b=1..4", "--card", "H1000"], "'H1000'"),
    ],
)
def test_wrong_usage_is_one_sentence(arguments, sentence, tmp_path):
    done = subprocess.run([COMMAND, "simulate", *arguments, "--", "python", "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and sentence in done.stderr, done.stderr
