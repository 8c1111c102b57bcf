"""CI without a GPU: marked tests on a simulated card, in environments with a stock PyTorch."""

import subprocess

import pytest

from installed_package import link_pytest, wheel  # noqa: F401 (fixture)
from support.simulated import make_stock_environment, simulate_command

TESTS = """
import pytest
import torch

kept = []


@pytest.fixture
def model():
    return torch.nn.Linear(1024, 4096).cuda()


def train(model):
    output = model(torch.randn(64, 1024, device="cuda"))
    output.square().mean().backward()
    return output


@pytest.mark.gpu_memory_budget(peak="1 GiB")
@pytest.mark.gpu_no_leaks(warmup=1)
def test_within_limits(model):
    train(model)


@pytest.mark.gpu_memory_budget(peak="30 MiB")
def test_above_its_peak(model):
    train(model)


@pytest.mark.gpu_no_leaks(warmup=1)
def test_that_leaks(model):
    kept.append(train(model))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_without_mark(model):
    assert train(model).shape == (64, 4096)
"""


@pytest.fixture
def stock(torch_version, wheel, tmp_path):  # noqa: F811
    """A stock PyTorch with the package from its wheel."""
    stock = make_stock_environment(torch_version, tmp_path / "stock")
    subprocess.run([stock / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel], check=True)
    return stock


def test_marks_fail_on_a_leak_and_on_a_peak(stock, tmp_path):
    (tmp_path / "test_model.py").write_text(TESTS)
    (tmp_path / "packages").mkdir()
    packages = link_pytest(tmp_path / "packages")
    command = [stock / "bin" / "python", "-m", "pytest", "-p", "no:cacheprovider", "--gpumemtrace-required", "test_model.py"]
    printed, said = simulate_command(tmp_path, command, "--no-report", code=1, PYTHONPATH=str(packages))
    assert "simulating NVIDIA H100" in said and "2 failed, 2 passed" in printed, printed + said
    failures = {part.split()[0]: part.splitlines() for part in printed.split("\n____")[1:] for part in [part.lstrip("_ ")]}
    assert set(failures) == {"test_above_its_peak", "test_that_leaks"}
    peak, leak = failures["test_above_its_peak"], failures["test_that_leaks"]
    assert peak[1].startswith("the test's peak of allocated memory was ") and peak[1].endswith("above its budget of 30.00 MiB (31,457,280 bytes)")
    line = next(number for number, text in enumerate(TESTS.splitlines(), 1) if "output = model" in text)
    assert peak[2].split("MiB  ")[1] == f"test_model.py:{line} in train() (backward)", printed
    assert leak[1:3] == ["the test retained 1.00 MiB (1,048,576 bytes) on GPU 0, above the allowed 0 B",
                         f"      1.00 MiB  test_model.py:{line} in train()"], printed
