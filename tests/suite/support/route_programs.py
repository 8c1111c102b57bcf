"""Compiles the C programs of tests/routes beside the simulated driver and runs them."""

import json
import os
import shutil
import subprocess

import pytest

from conftest import DRIVER, REPOSITORY, dump, environment, gpumemtrace, read_log
from ground_truth import assert_calls_equal_driver

ROUTES = REPOSITORY / "tests" / "routes"
MIB = 1 << 20


class RouteFolder:
    """A folder with the simulated driver named libcuda.so.1, and programs compiled into it."""

    def __init__(self, folder):
        self.folder = folder
        shutil.copy(DRIVER, folder / "libcuda.so.1")

    def compile(self, output, source, *options):
        compiler = shutil.which(os.environ.get("CC", "cc"))
        if compiler is None:
            reason = "not checked: there is no C compiler here"
            pytest.fail(reason) if os.environ.get("GPUMEMTRACE_REQUIRE_ALL") else pytest.skip(reason)
        shared = ["-shared", "-fPIC"] if ".so" in output else []
        command = [compiler, "-O1", "-g", "-Wall", "-Werror", "-Wno-nonnull", *shared, "-o", self.folder / output, source, *options,
                   f"-L{self.folder}", f"-Wl,-rpath,{self.folder}", "-ldl"]
        subprocess.run(command, check=True, cwd=self.folder)
        return self.folder / output

    def program(self, name, *options):
        return self.compile(name, ROUTES / f"{name}.c", *options)

    def run(self, *command, traced=True, **extra):
        env = environment(self.folder, traced, LD_LIBRARY_PATH=self.folder, **extra)
        return subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=120)

    def calls(self):
        return read_log(self.folder / "driver.log")

    def events(self):
        return dump(self.folder / "run.trace")

    def uncovered(self):
        report = json.loads(gpumemtrace("replay", self.folder / "run.trace", "--json"))
        return report["traces"][0]["losses"]["uncovered_calls"]

    def check_all_recorded(self, sizes):
        """Checks that the trace has each call of the program once, and that none was uncovered."""
        events = self.events()
        assert_calls_equal_driver(events, self.calls())
        assert [event["size"] for event in events if event["kind"] == "device_alloc"] == [size * MIB for size in sizes]
        assert self.uncovered() == 0


@pytest.fixture
def place(tmp_path):
    return RouteFolder(tmp_path)
