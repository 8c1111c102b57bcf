"""Runs a program of many driver calls whose trace is rotated into parts."""

import re
import subprocess
import sys

from conftest import DRIVER, WORKLOADS, environment

# Enough for two full parts however few blocks the writer makes of it.
COUNT = 120_000


def start(folder, count, **extra):
    driver = folder / "libcuda.so.1"
    if not driver.exists():
        driver.symlink_to(DRIVER)
    # Small rings, so that few calls fill parts.
    env = environment(folder, GPUMEMTRACE_MEMORY="32MiB", **extra)
    return subprocess.Popen(
        [sys.executable, WORKLOADS / "driver/alloc_free.py", driver, str(count)], cwd=folder, env=env,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )


def run(folder, count=COUNT, **extra):
    with start(folder, count, **extra) as process:
        _, stderr = process.communicate(timeout=300)
    assert (process.returncode, stderr) == (0, "")


def parts(folder):
    """Full parts, oldest first."""
    number = lambda path: int(re.search(r"\.part(\d+)\.", path.name)[1])
    return sorted(folder.glob("run.*.part*.trace"), key=number)
