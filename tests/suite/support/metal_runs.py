"""Builds the library with Metal's hooks and the double of Metal (tests/metal); runs programs."""

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from conftest import BUILD, LIBRARY, REPOSITORY, TARGET, Run, environment

METAL = REPOSITORY / "tests" / "metal"
GOLDEN = REPOSITORY / "tests" / "golden"


def has_objective_c():
    if not shutil.which("gcc"):
        return False
    found = subprocess.run(["gcc", "-print-prog-name=cc1obj"], capture_output=True, text=True, check=True).stdout.strip()
    return Path(found).is_absolute() and Path(found).exists()


def is_gobjc_packaged():
    """Returns whether the system's packages include GCC's Objective-C."""
    apt = shutil.which("apt-cache")
    return bool(apt) and subprocess.run([apt, "show", "gobjc"], capture_output=True).returncode == 0


@cache
def built():
    """Builds and returns the library with the hooks, the double, and the object storm."""
    if not has_objective_c():
        reason = "GCC has no Objective-C here (cc1obj, of Debian's gobjc)"
        must = os.environ.get("GPUMEMTRACE_REQUIRE_ALL") and is_gobjc_packaged()
        pytest.fail(reason) if must else pytest.skip(reason)
    target = TARGET / "metal-double"
    subprocess.run(["cargo", "build", "--quiet", "--release", "--package", "gpumemtrace-interpose", "--features", "metal-double",
                    "--target-dir", target], cwd=REPOSITORY, check=True)
    folder = target / f"double-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    double, storm = folder / "libdouble.so", folder / "storm"
    strict = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-g", "-O1"]
    subprocess.run(["gcc", *strict, "-x", "objective-c", "-fPIC", "-shared", "-o", double, METAL / "metal_double.m", "-lobjc", "-lpthread"],
                   check=True)
    subprocess.run(["gcc", *strict, "-o", storm, METAL / "object_storm.c", double, f"-Wl,-rpath,{folder}", "-lpthread"], check=True)
    return target / "release" / LIBRARY.name, double, storm


def run(folder, *command, traced=True, **extra):
    library, double, _ = built()
    preload = {"LD_PRELOAD": library} if traced else {}
    env = environment(folder, traced=False, METAL_DOUBLE=double, DOUBLE_LOG=folder / "double.log", **preload, **extra)
    done = subprocess.run([*map(str, command)], cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return Run(done, folder)


def marked_lines(script):
    return {number: match[1] for number, line in enumerate(script.read_text().splitlines(), 1)
            if (match := re.search(r"# line: (\w+)", line))}
