"""Runs of `gpumemtrace simulate` in environments without simulated libraries."""

import os
import shutil
import subprocess

from conftest import COMMAND, VENVS, run_program


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


def simulate_program(folder, stock, program, *arguments, **how):
    """Runs a program; returns what it printed, and what the command said."""
    (folder / "train.py").write_text(program)
    return simulate_command(folder, [stock / "bin" / "python", "train.py"], *arguments, **how)


def simulate_ranks(folder, stock, ranks, script, *arguments, options=(), **how):
    """Runs a script with torchrun, one simulated card for each rank."""
    # The environment's own torchrun would start the Python of the environment it is a copy of.
    torchrun = folder / "torchrun"
    torchrun.write_text(f"#!{stock}/bin/python\nfrom torch.distributed.run import main\nmain()\n")
    torchrun.chmod(0o755)
    command = [torchrun, "--standalone", "--nproc-per-node", ranks, script, *options]
    how = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"} | how
    return simulate_command(folder, command, "--gpu-count", ranks, *arguments, **how)


def simulate_command(folder, program, *arguments, code=0, timeout=300, **variables):
    env = clean_environment() | {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1"} | variables
    command = [COMMAND, "simulate", *map(str, arguments), "--", *map(str, program)]
    done = run_program(command, folder, timeout, env=env)
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout, done.stderr
