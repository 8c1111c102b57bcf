"""Third-party readers of exported files, in the environment that scripts/setup/readers makes.

GPUMEMTRACE_READERS names its folder. Readers run as processes of their own: their packages are not
installed beside pytest.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

READERS = os.environ.get("GPUMEMTRACE_READERS", "")


def skip_or_fail(what):
    reason = f"not checked: {what} here"
    pytest.fail(reason) if os.environ.get("GPUMEMTRACE_REQUIRE_ALL") else pytest.skip(reason)


def readers_folder():
    """Returns the folder of the readers; skips the test if there is none."""
    return Path(READERS) if READERS else skip_or_fail("GPUMEMTRACE_READERS is not set (scripts/setup/readers makes its folder)")


def reader_program(name):
    """Returns the path of a program that a Python package installed."""
    return readers_folder() / "bin" / name


def node_package(name):
    """Returns the folder of an npm package."""
    return readers_folder() / "node" / "node_modules" / name


def run_reader(command, code=0, **how):
    """Runs a reader and returns the finished process; any other exit code than `code` fails."""
    # A reader must not find this user's settings or the recorder.
    env = {key: value for key, value in os.environ.items() if not key.startswith(("GPUMEMTRACE_", "LD_", "PYTHON"))}
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=300, env=env, **how)
    assert done.returncode == code, f"exit code {done.returncode}, not {code}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done


def read_with_python(script, *arguments):
    """Runs a Python script beside the readers' packages and returns the JSON value that it prints."""
    return json.loads(run_reader([reader_program("python"), "-c", script, *arguments]).stdout)
