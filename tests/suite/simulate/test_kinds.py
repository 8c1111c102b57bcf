"""Kinds of programs: each gives the same shapes and integers on the simulated GPU as on the CPU."""

import pytest
from conftest import WORKLOADS
from installed_package import trainers_of
from support.simulated import make_stock_environment, simulate_command, simulate_ranks

KINDS = WORKLOADS / "simulate" / "kinds"


@pytest.fixture
def stock(torch_version, tmp_path):
    return make_stock_environment(torch_version, tmp_path / "stock")


def check(printed, said, least):
    """At least `least` programs ran, and all are as on the CPU."""
    lines = [line for line in printed.splitlines() if ": " in line]
    ran = [line for line in lines if ": skipped: " not in line]
    assert all(line.endswith(": ok") for line in ran), "\n".join(line for line in ran if not line.endswith(": ok")) + said[-2000:]
    if len(ran) < least and len(lines) >= least:
        pytest.skip("; ".join(line for line in lines if line not in ran)[:500])
    assert len(ran) >= least, said


@pytest.mark.slow("runs a hundred programs, on the CPU and on the GPU")
@pytest.mark.parametrize("module, least", [("torch_values", 34), ("torch_training", 28), ("torch_models", 42)])
def test_programs_with_pytorch_alone(stock, tmp_path, module, least):
    command = [stock / "bin" / "python", KINDS / "run_kinds.py", module]
    check(*simulate_command(tmp_path, command, "--no-report", OMP_NUM_THREADS="1"), least)


@pytest.mark.long
@pytest.mark.parametrize("module, least", [("transformers_models", 47), ("transformers_generation", 25), ("libraries", 35)])
def test_programs_with_libraries(torch_version, stock, tmp_path, module, least):
    how = {"PYTHONPATH": str(trainers_of(torch_version)), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    command = [stock / "bin" / "python", KINDS / "run_kinds.py", module]
    check(*simulate_command(tmp_path, command, "--no-report", timeout=900, **how), least)


@pytest.mark.slow("two processes that import torch.distributed")
def test_programs_on_two_ranks(torch_version, stock, tmp_path):
    if tuple(map(int, torch_version.split(".")[:2])) < (2, 15):
        pytest.skip("Gloo of older releases does not run these programs on the CPU")
    printed, said = simulate_ranks(tmp_path, stock, 2, KINDS / "run_kinds.py", "--no-report", options=["distributed"])
    # Lines of two processes may share one.
    printed = printed.replace("rank ", "\nrank ")
    check(printed, said, 34)
