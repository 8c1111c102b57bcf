"""SIGKILL at random times of a training: the trace opens, reports the kill, and has every call."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import COMMAND, REPOSITORY, VENVS, WORKLOADS, environment

sys.path.insert(0, str(REPOSITORY / "scripts" / "checks"))

from reliability import oracle  # noqa: E402

# GPUMEMTRACE_KILLS=1000 makes a long run. scripts/nightly kills other programs as often.
KILLS = int(os.environ.get("GPUMEMTRACE_KILLS", 4))


@pytest.mark.parametrize("number", range(KILLS))
def test_kill_at_random_time_loses_no_call(tmp_path, number):
    """What is asserted holds whenever the kill comes."""
    moment = random.Random(number)
    torch_version = sorted(VENVS)[number % len(VENVS)]
    python = Path(VENVS[torch_version]) / "bin" / "python"
    conf = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if number % 3 == 0 else {}
    trace, starts = tmp_path / "run.trace", number % 4 == 1
    with subprocess.Popen(
        [python, WORKLOADS / "training/train.py", "--model", moment.choice(["mlp", "resnet18"]), "--forever"],
        cwd=tmp_path, env=environment(tmp_path, **conf), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:
        if starts:
            while not trace.exists():
                time.sleep(0.005)
        else:
            process.stdout.readline()
        time.sleep(moment.uniform(0, 1.2))
        process.kill()
    outcome = oracle.compare(COMMAND, trace, tmp_path / "driver.log", process.pid, one_device_blocks=True, torn_write=True)
    assert outcome.end == "killed" and (starts or outcome.calls > 0)


def test_trace_is_readable_while_program_runs(tmp_path):
    python = Path(next(iter(VENVS.values()))) / "bin" / "python"
    with subprocess.Popen(
        [python, WORKLOADS / "training/train.py", "--forever"], cwd=tmp_path, env=environment(tmp_path),
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:
        for _ in range(20):
            process.stdout.readline()
        output = subprocess.run([COMMAND, "replay", tmp_path / "run.trace"], capture_output=True, text=True)
        process.kill()
    assert "running" in output.stdout, output.stdout + output.stderr
