"""Forks while the recorder's thread is inside the loader or NVML.

The NVML of tests/workloads/driver/slow_nvml.c notes when it is in use. A child that is forked then
inherits its locks and those of the loader.
"""

import os
import shutil
import subprocess

import pytest

from conftest import WORKLOADS
from durability_case import Case, skip_or_fail


@pytest.fixture(scope="module")
def bin(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bin")
    compiler = shutil.which(os.environ.get("CC", "cc")) or skip_or_fail("there is no C compiler")
    source = WORKLOADS / "driver"
    build = lambda name, file, *options: subprocess.run(
        [compiler, "-O1", "-g", "-Wall", "-Werror", "-o", folder / name, source / file, *options], check=True)
    build("libcuda.so.1", "c_driver.c", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")
    build("libnvidia-ml.so.1", "slow_nvml.c", "-shared", "-fPIC")
    build("fork_in_constructor.so", "fork_in_constructor.c", "-shared", "-fPIC")
    build("forks", "forks.c", "-rdynamic", f"-L{folder}", "-l:libcuda.so.1", f"-Wl,-rpath,{folder}", "-ldl")
    return folder


@pytest.fixture
def run(tmp_path, bin):
    if os.readlink("/proc/self/ns/pid") != "pid:[4026531836]":
        skip_or_fail("NVML is not used in a PID namespace")

    def run_traced(way):
        """Returns what the program printed."""
        case = Case(tmp_path, bin).run(bin / "forks", way)
        assert (case.code, case.lines()) == (0, []), case.output
        assert case.facts()["complete"]
        return case.output

    return run_traced


def test_no_child_is_forked_inside_nvml(run):
    assert run("loop") == "queries made, children inside 0, forks prompt\n"


def test_fork_under_the_lock_of_the_loader_does_not_block(run, bin):
    assert run(bin / "fork_in_constructor.so") == "loaded within 30 s\n"
