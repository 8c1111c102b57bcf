"""Runs a program of many driver calls, with a trace rotated into parts."""

import re
import subprocess
import sys

from conftest import DRIVER, WORKLOADS, environment

# Two full parts need at least this many calls, however large the writer's blocks are.
COUNT = 40_000


def start(folder, count, **extra):
    driver = folder / "libcuda.so.1"
    if not driver.exists():
        driver.symlink_to(DRIVER)
    # With small rings a few calls fill a part.
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
    """Returns the full parts, oldest first."""
    number = lambda path: int(re.search(r"\.part(\d+)\.", path.name)[1])
    return sorted(folder.glob("run.*.part*.trace"), key=number)
