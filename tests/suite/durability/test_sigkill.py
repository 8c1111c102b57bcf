"""SIGKILL at random times of a training: the trace opens, reports the kill, and has every call."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from conftest import COMMAND, VENVS, WORKLOADS, driver_calls, dump, environment, gpumemtrace, read_log
from ground_truth import NOT_EVENTS

# GPUMEMTRACE_KILLS=1000 makes a long run.
KILLS = int(os.environ.get("GPUMEMTRACE_KILLS", 20))


@pytest.mark.parametrize("number", range(KILLS))
def test_kill_at_random_time_loses_no_call(tmp_path, number):
    moment = random.Random(number)
    torch_version = sorted(VENVS)[number % len(VENVS)]
    python = Path(VENVS[torch_version]) / "bin" / "python"
    conf = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if number % 3 == 0 else {}
    with subprocess.Popen(
        [python, WORKLOADS / "training/train.py", "--model", moment.choice(["mlp", "resnet18"]), "--forever"],
        cwd=tmp_path, env=environment(tmp_path, **conf), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:
        if number % 4 != 1:
            process.stdout.readline()
        else:
            while not (tmp_path / "run.trace").exists():
                time.sleep(0.005)
        time.sleep(moment.uniform(0, 1.2))
        process.send_signal(signal.SIGKILL)
        process.wait()
    calls = [call for call in read_log(tmp_path / "driver.log") if call["api"] not in NOT_EVENTS]
    events = dump(tmp_path / "run.trace")
    placed = [event for event in events if not event["in_flight"]]
    traced = driver_calls(placed)
    in_flight = [event for event in events if event["in_flight"]]
    assert len(in_flight) <= len({event["tid"] for event in events})
    key = lambda event: (event["api"], event["tid"], event["rc"], event["addr"] if event["rc"] == 0 else None)
    known = [key(event) for event in traced]
    logged = [key(call) for call in calls]
    # A call that the driver logged but that had not returned is in flight in the trace.
    assert known == logged[: len(known)]
    for call in calls[len(known):]:
        assert any(event["api"] == call["api"] and event["tid"] == call["tid"] for event in in_flight), call
    assert len(calls) - len(known) <= len(in_flight)
    total = 0
    for event in placed:
        if event["kind"] in ("block_alloc", "block_free"):
            total += event["size"] if event["kind"] == "block_alloc" else -event["size"]
            assert event["aux0"] == total
    head = gpumemtrace("replay", tmp_path / "run.trace")
    assert "killed" in head


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
        process.wait()
    assert "running" in output.stdout, output.stdout + output.stderr
