"""`gpumemtrace simulate` with a stock PyTorch: an environment without simulated libraries."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import COMMAND, VENVS, WORKLOADS, dump

FAMILIES = WORKLOADS / "families"
TRAIN = """
import torch

properties = torch.cuda.get_device_properties(0)
print(properties.name, properties.total_memory, properties.major, properties.minor, properties.multi_processor_count, torch.cuda.device_count())
model = torch.nn.Linear(1024, 4096).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(1000):
    loss = model(torch.randn(64, 1024, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    if loss > 1:
        print("large")
"""


@pytest.fixture
def stock(torch_version, tmp_path):
    """A copy of an environment, of hard links, without its simulated libraries."""
    folder = tmp_path / "stock"
    subprocess.run(["cp", "-al", VENVS[torch_version], folder], check=True)
    [packages] = (folder / "lib").glob("python*/site-packages")
    shutil.rmtree(packages / "nvidia")
    return folder


def simulate(folder, stock, *arguments, code=0, program=TRAIN, **variables):
    """Runs a program; returns what it printed, and what the command said."""
    (folder / "train.py").write_text(program)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("GPUMEMTRACE_", "SIMGPU_", "LD_", "PYTHONPATH"))}
    env |= {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1"} | variables
    command = [COMMAND, "simulate", *map(str, arguments), "--", stock / "bin" / "python", "train.py"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout, done.stderr


def state_of(folder):
    """Each file with its size and the time of its last change."""
    facts = ((path.relative_to(folder), path.lstat()) for path in sorted(folder.rglob("*")))
    return [(path, fact.st_size, fact.st_mtime_ns, fact.st_mode) for path, fact in facts]


def test_stock_environment_runs_and_stays_as_it_was(stock, tmp_path):
    before = state_of(stock)
    printed, said = simulate(tmp_path, stock, "--card", "A100", "--devices", 2, "--steps", 6)
    assert state_of(stock) == before
    assert printed.startswith("NVIDIA A100 (80 GB), simulated 84974239744 8 0 108 2\n"), printed
    assert "simulating 2 x NVIDIA A100 (80 GB), 79.14 GiB" in said and "values on the GPU are 0" in said
    # The report of the trace follows, and says that the card was simulated.
    assert "GPU 0 (NVIDIA A100 (80 GB), simulated, 79.14 GiB)" in printed and "6 steps" in printed
    assert any(event["kind"] == "block_alloc" for event in dump(tmp_path / "run.trace"))


def test_lines_that_read_values_are_named(stock, tmp_path):
    _, said = simulate(tmp_path, stock, "--steps", 4, "--no-report")
    # The fourth step ends the program before it compares.
    assert re.search(r"read values from the GPU.*\n  train\.py:12: bool, 3 times\n", said), said


def test_card_that_is_too_small_runs_out_of_memory(stock, tmp_path):
    program = TRAIN.replace("range(1000)", "range(2)") + 'torch.empty(700 << 20, dtype=torch.uint8, device="cuda")\n'
    simulate(tmp_path, stock, "--card", "2GiB", program=program)
    printed, said = simulate(tmp_path, stock, "--card", "1GiB", program=program, code=1)
    assert "OutOfMemoryError" in said and "Out of memory in step 2 on GPU 0 at train.py:14" in printed, said
    # The context took more than half of this card.
    assert "although recorded calls had left" in printed and "contexts or other processes used it" in printed


def test_two_commands_with_an_empty_cache(stock, tmp_path):
    folders = [tmp_path / "one", tmp_path / "two"]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("GPUMEMTRACE_", "SIMGPU_", "LD_"))}
    running = []
    for folder in folders:
        folder.mkdir()
        (folder / "train.py").write_text(TRAIN)
        command = [COMMAND, "simulate", "--steps", "2", "--no-report", "--", stock / "bin" / "python", "train.py"]
        running.append(subprocess.Popen(command, cwd=folder, env=env | {"XDG_CACHE_HOME": str(tmp_path / "cache")}))
    assert [process.wait(300) for process in running] == [0, 0]
    [made] = (tmp_path / "cache" / "gpumemtrace" / "simulated").iterdir()
    assert (made / "libcuda.so.1").is_file() and all((folder / "run.trace").is_file() for folder in folders)


def test_what_cannot_be_simulated_is_one_sentence(tmp_path):
    def refusal(*command):
        done = subprocess.run([COMMAND, "simulate", "--", *command], cwd=tmp_path, capture_output=True, text=True, timeout=60,
                              env=os.environ | {"PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)})
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    assert "is neither Python nor a Python script" in refusal("/bin/true")
    assert "has no PyTorch" in refusal(sys.executable, "-c", "") or "torch" in sys.modules
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "lib").mkdir()
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.9.1+cpu'\ncuda: str = None\n")
    assert "this torch is not a CUDA build" in refusal(sys.executable, "-c", "")


@pytest.mark.parametrize("family", ["language/gpt", "language/moe", "language/lstm", "graph_network", "recommender", "captured_steps"])
def test_family_trains(stock, tmp_path, family):
    program = (FAMILIES / f"{family}.py").read_text()
    printed, _ = simulate(tmp_path, stock, "--no-report", program=program, PYTHONPATH=str(FAMILIES))
    assert "loss 0.0" in printed
    assert sum(event["kind"] == "block_alloc" for event in dump(tmp_path / "run.trace")) > 150
