"""Programs that use the Python package, out of its wheel, beside a PyTorch whose environment is not ours to install into."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import VENVS, WORKLOADS, Run, environment, run_program
from test_package import installed, wheel  # noqa: F401 (fixtures)

#: torch-version=folder, of what scripts/trainers has put there.
TRAINERS = dict(pair.split("=", 1) for pair in os.environ.get("GPUMEMTRACE_TRAINERS", "").split(",") if pair)


def trainers_of(torch_version):
    """The folder with trainers and notebooks for the environment of this PyTorch."""
    if torch_version not in TRAINERS:
        reason = f"GPUMEMTRACE_TRAINERS names no folder for torch {torch_version}: scripts/trainers makes one"
        pytest.fail(reason) if os.environ.get("GPUMEMTRACE_REQUIRE_ALL") else pytest.skip(reason)
    return TRAINERS[torch_version]


@dataclass
class Packaged(Run):
    """A program that has ended, whose last line was JSON, and which has left one trace."""

    @property
    def trace(self):
        [trace] = self.folder.glob("*.trace")
        return trace

    @property
    def said(self):
        return json.loads(self.process.stdout.splitlines()[-1])


@pytest.fixture
def packaged(installed, tmp_path):  # noqa: F811
    """Runs a workload with the package, by `gpumemtrace run` or by itself."""
    there = installed[max(installed)]
    site_packages = next(there.folder.glob("lib/python3.*/site-packages"))

    def run(torch_version, script, *arguments, by_run=True, name="run", more=(), **extra):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        path = os.pathsep.join(map(str, (site_packages, *more)))
        env = environment(folder, traced=False, PYTHONPATH=path, PYTHONDONTWRITEBYTECODE=1, **extra)
        python = Path(VENVS[torch_version]) / "bin" / "python"
        command = [*([there.command, "run", "--"] if by_run else []), python, WORKLOADS / script, *map(str, arguments)]
        done = run_program(command, folder, env=env)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return Packaged(done, folder)

    return run
