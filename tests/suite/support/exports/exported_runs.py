"""Runs for the tests of exports, recorded once per PyTorch version."""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import DRIVER, VENVS, WORKLOADS, environment, gpumemtrace, run_program

RANKS = 2


@pytest.fixture(scope="session")
def newest():
    """The newest PyTorch. The versions differ in what they record, not in how it is exported."""
    if not VENVS:
        raise pytest.UsageError("GPUMEMTRACE_VENVS is not set: run scripts/test, which makes the environments")
    return max(VENVS, key=lambda version: [int(part) for part in version.split(".")])


@dataclass
class ExportedRun:
    """The traces of a run, by rank, and a folder for what is made of them."""

    folder: Path
    traces: list

    def export(self, format, *options, code=0, name="exported"):
        """Exports all traces and returns the path of the file."""
        path = self.folder / name
        gpumemtrace("export", format, *self.traces, *options, "-o", path, "--force", code=code)
        return path

    def report(self, *options):
        return json.loads(gpumemtrace("replay", *self.traces, *options, "--json"))


@pytest.fixture(scope="session")
def stepped_run(tmp_path_factory):
    """A training of 12 marked steps that leaks; `peaks` has PyTorch's peaks of each step."""
    made = {}

    def run(torch_version):
        if torch_version not in made:
            folder = tmp_path_factory.mktemp("stepped")
            python = Path(VENVS[torch_version]) / "bin" / "python"
            command = [python, WORKLOADS / "export" / "stepped.py", "--leak", "--steps", 24, "--peaks", folder / "peaks"]
            done = run_program(list(map(str, command)), folder, env=environment(folder, SIMGPU_MEM="4G"))
            assert done.returncode == 0, done.stderr[-4000:]
            made[torch_version] = ExportedRun(folder, [folder / "run.trace"])
        return made[torch_version]

    return run


@pytest.fixture(scope="session")
def ranks_run(tmp_path_factory):
    """Two ranks of a distributed training; rank 1 leaks."""
    made = {}

    def run(torch_version):
        if torch_version not in made:
            folder = tmp_path_factory.mktemp("ranks")
            env = environment(folder, SIMGPU_DEVICES=RANKS, SIMGPU_COPY="small", SIMGPU_LOG="", OMP_NUM_THREADS=1)
            command = [Path(VENVS[torch_version]) / "bin" / "python", "-m", "torch.distributed.run", "--nproc-per-node", RANKS,
                       "--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0",
                       WORKLOADS / "training" / "ranks.py", "--leaking-rank", 1]
            done = subprocess.run(list(map(str, command)), cwd=folder, env=env, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stderr[-4000:]
            made[torch_version] = ExportedRun(folder, [folder / f"run.rank{rank}.trace" for rank in range(RANKS)])
        return made[torch_version]

    return run


@pytest.fixture(scope="session")
def driver_run(tmp_path_factory):
    """A program that calls the driver without PyTorch."""
    folder = tmp_path_factory.mktemp("driver")
    driver = folder / "libcuda.so.1"
    shutil.copy(DRIVER, driver)
    done = subprocess.run([sys.executable, WORKLOADS / "driver" / "alloc_free.py", driver, "2000"], cwd=folder,
                          env=environment(folder), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return ExportedRun(folder, [folder / "run.trace"])
