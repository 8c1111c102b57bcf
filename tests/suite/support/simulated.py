"""Runs of `gpumemtrace simulate` in environments without simulated libraries."""

import os
import shutil
import subprocess

from conftest import COMMAND, VENVS


def site_packages(environment):
    [folder] = (environment / "lib").glob("python*/site-packages")
    return folder


def make_stock_environment(torch_version, folder):
    """A copy of an environment, of hard links, without its simulated libraries."""
    subprocess.run(["cp", "-al", VENVS[torch_version], folder], check=True)
    shutil.rmtree(site_packages(folder) / "nvidia")
    return folder


def clean_environment():
    """The variables of this process, without those that change a recording or a simulation."""
    ours = ("GPUMEMTRACE_", "SIMGPU_", "LD_", "PYTHONPATH")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def simulate_program(folder, stock, program, *arguments, code=0, **variables):
    """Runs a program; returns what it printed, and what the command said."""
    (folder / "train.py").write_text(program)
    env = clean_environment() | {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1"} | variables
    command = [COMMAND, "simulate", *map(str, arguments), "--", stock / "bin" / "python", "train.py"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout, done.stderr
