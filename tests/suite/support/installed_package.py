"""Installs the package's wheel beside unchanged PyTorch environments, and runs programs."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pluggy
import pytest

from conftest import BUILD, PYTHONS, REPOSITORY, VENVS, WORKLOADS, Run, environment, run_program

#: Packages that scripts/setup/trainers installed: torch-version=folder,...
TRAINERS = dict(pair.split("=", 1) for pair in os.environ.get("GPUMEMTRACE_TRAINERS", "").split(",") if pair)


def version_of(python):
    code = "import sys; print(*sys.version_info[:2])"
    return tuple(map(int, subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split()))


def build_distribution(kind, folder, source=REPOSITORY, prebuilt=BUILD):
    """Builds a wheel, an editable wheel or an sdist with hatchling, from the tested library and
    command or from those in `prebuilt`."""
    code = f"import sys, hatchling.build; hatchling.build.build_{kind}(sys.argv[1])"
    env = os.environ | {"GPUMEMTRACE_PREBUILT": str(prebuilt)}
    done = subprocess.run([sys.executable, "-c", code, folder], cwd=source, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = folder.iterdir()
    return path


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    return build_distribution("wheel", tmp_path_factory.mktemp("wheel"))


def link_pytest(folder):
    """Links this pytest, which PyTorch's environments lack, into a folder for PYTHONPATH."""
    here = Path(pluggy.__file__).parents[1]
    wanted = {"pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py"}
    for path in here.iterdir():
        if re.split("[-.]", path.name)[0] in wanted:
            (folder / path.name).symlink_to(path)
    return folder


class PackageEnvironment:
    """A virtual environment for the package alone."""

    def __init__(self, python, folder):
        self.python = folder / "bin" / "python"
        self.command = folder / "bin" / "gpumemtrace"
        # Unpacking pip takes seconds, so this pip installs.
        self.pip_command = [sys.executable, "-m", "pip", "--python", self.python]
        self.folder = folder
        subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True, timeout=300)

    def pip(self, command, *arguments):
        options = ["--quiet", "--disable-pip-version-check"]
        subprocess.run([*self.pip_command, command, *options, *arguments], check=True, timeout=300)

    def install(self, wheel):
        self.pip("install", "--no-index", "--no-deps", wheel)

    def files(self):
        return {path for path in self.folder.rglob("*") if "__pycache__" not in path.parts}


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory):
    """Environments of the oldest and the newest CPython found here, by version."""
    assert PYTHONS, "GPUMEMTRACE_PYTHONS is not set: run scripts/test"
    by_version = {version_of(python): python for python in reversed(PYTHONS)}
    made = {}
    for version in {min(by_version), max(by_version)}:
        made[version] = PackageEnvironment(by_version[version], tmp_path_factory.mktemp("installed") / "venv")
        made[version].install(wheel)
    return made


def trainers_of(torch_version):
    """Returns the folder with trainers, notebooks and Ray for one PyTorch."""
    if torch_version not in TRAINERS:
        reason = f"GPUMEMTRACE_TRAINERS names no folder for torch {torch_version}: scripts/setup/trainers makes one"
        pytest.fail(reason) if os.environ.get("GPUMEMTRACE_REQUIRE_ALL") else pytest.skip(reason)
    return TRAINERS[torch_version]


@dataclass
class Packaged(Run):
    """A finished program that left one trace; the last line of its output is JSON."""

    @property
    def trace(self):
        [trace] = self.folder.glob("*.trace")
        return trace

    @property
    def printed(self):
        return json.loads(self.process.stdout.splitlines()[-1])


@pytest.fixture
def packaged(installed, tmp_path):
    """Runs a workload with the package, under `gpumemtrace run` or by itself."""
    there = installed[max(installed)]
    site_packages = next(there.folder.glob("lib/python3.*/site-packages"))

    def run(torch_version, script, *arguments, by_run=True, name="run", more=(), before=None, **extra):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        if before is not None:
            before(folder)
        path = os.pathsep.join(map(str, (site_packages, *more)))
        env = environment(folder, traced=False, PYTHONPATH=path, PYTHONDONTWRITEBYTECODE=1, **extra)
        python = Path(VENVS[torch_version]) / "bin" / "python"
        command = [*([there.command, "run", "--"] if by_run else []), python, WORKLOADS / script, *map(str, arguments)]
        done = run_program(command, folder, env=env)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return Packaged(done, folder)

    return run
