"""CI without a GPU: the recipes of docs/commands/ci.md, and marked tests, with a stock PyTorch."""

import os
import re
import subprocess

import pytest

from ci_recipes import SERVICES, Machine, page_file, page_steps
from conftest import run_program
from docs_pages import TORCH
from installed_package import link_pytest, wheel  # noqa: F401 (fixture)
from support.simulated import clean_environment, make_stock_environment

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
    [command] = page_steps()
    (tmp_path / "test_model.py").write_text(TESTS)
    (tmp_path / "packages").mkdir()
    env = clean_environment() | {"PATH": f"{stock}/bin:{os.environ['PATH']}", "PYTHONPATH": str(link_pytest(tmp_path / "packages")),
                                 "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = run_program(["bash", "-c", f"{command} -p no:cacheprovider"], tmp_path, timeout=300, env=env)
    printed = done.stdout
    assert done.returncode == 1 and "simulating NVIDIA H100" in done.stderr, printed + done.stderr
    assert "2 failed, 1 passed, 1 deselected" in printed, printed
    failures = {part.split()[0]: part.splitlines() for part in printed.split("\n____")[1:] for part in [part.lstrip("_ ")]}
    assert set(failures) == {"test_above_its_peak", "test_that_leaks"}
    peak, leak = failures["test_above_its_peak"], failures["test_that_leaks"]
    assert peak[1].startswith("the test's peak of allocated memory was ") and peak[1].endswith("above its budget of 30.00 MiB (31,457,280 bytes)")
    line = next(number for number, text in enumerate(TESTS.splitlines(), 1) if "output = model" in text)
    assert peak[2].split("MiB  ")[1] == f"test_model.py:{line} in train() (backward)", printed
    assert leak[1:3] == ["the test retained 1.00 MiB (1,048,576 bytes) on GPU 0, above the allowed 0 B",
                         f"      1.00 MiB  test_model.py:{line} in train()"], printed


def with_more_memory(program, share):
    """The page's program with one more tensor, of a share of its peak."""
    size = int(160.81 * 2**20 * share)
    return program.replace("\n\n", f"\nmore = torch.empty({size}, dtype=torch.uint8, device='cuda')\n\n", 1)


@pytest.mark.slow("installs packages as the recipe does")
@pytest.mark.parametrize("service", SERVICES)
def test_recipe_fails_a_pull_request_with_its_reason(service, wheel, tmp_path):  # noqa: F811
    stock = make_stock_environment(TORCH, tmp_path / "stock")
    checkout = {name: page_file(name) for name in ("train.py", "requirements.txt", "gpu-memory.toml")}
    program, caches = checkout["train.py"], {}

    def run(name, changed):
        folder = tmp_path / name
        machine = Machine(folder, stock, wheel, caches, checkout | {"train.py": changed})
        job = SERVICES[service](machine, folder)
        # Also of a job that fails.
        assert set(job.artifacts) == {"run.trace", "run.html"}, job.log
        return job

    unchanged = run("unchanged", program)
    assert unchanged.passed and "2 of 2 limits met" in unchanged.log, unchanged.log
    assert "Successfully installed gpumemtrace" in unchanged.log
    [simulated] = [path for path in caches.values() if path.name != "pip" for path in path.glob("simulated/*")]
    made = (simulated / "libcuda.so.1").stat().st_mtime_ns

    keeps = program.replace("    loss.backward()", "    loss.backward()\n    outputs.append(output)")
    line = next(number for number, text in enumerate(keeps.splitlines(), 1) if "output = model" in text)
    leak = run("leak", keeps)
    assert not leak.passed and "FAIL     leaks.count  1, over by 1 (limit 0)" in leak.log, leak.log
    assert f"128.00 KiB/step  train.py:{line} in <module>" in leak.log and "ok       peak.live" in leak.log
    assert f"train.py:{line} in" in leak.result

    higher = run("higher", with_more_memory(program, 0.10))
    assert not higher.passed and "FAIL     peak.live" in higher.log and "ok       leaks.count" in higher.log, higher.log
    [measured] = re.findall(r"peak.live +([\d.]+) MiB, over by [\d.]+ MiB \(limit 160\.81 MiB \+ 8\.04 MiB\)", higher.log)
    assert float(measured) == pytest.approx(160.81 * 1.10, rel=0.01)
    assert "train.py:3 in <module>" in higher.log and "peak.live" in higher.result
    assert run("within", with_more_memory(program, 0.04)).passed

    # Later jobs used the cached libraries.
    for name in ("leak", "higher", "within"):
        [again] = (tmp_path / name).rglob("libcuda.so.1")
        assert again.stat().st_mtime_ns == made
