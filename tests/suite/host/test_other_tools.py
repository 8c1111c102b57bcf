"""Other tools in the process: a preload that replaces dlsym, an allocator that calls the driver,
ThreadSanitizer. tests/host/other_tools has the programs."""

import json
import os
import subprocess
import time

import pytest

from conftest import COMMAND, LIBRARY, environment, gpumemtrace
from durability_case import skip_or_fail
from host_matrix.programs import HOST, System
from host_matrix.runs import COUNTS

SOURCES = HOST / "other_tools"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("other-tools")
    system = System("here", LIBRARY)
    system.compile(HOST / "driver.c", folder / "libcuda.so.1", "-Wl,-soname,libcuda.so.1")
    system.compile(SOURCES / "replaces_dlsym.c", folder / "libtool.so")
    system.compile(SOURCES / "replaces_clock.c", folder / "libclock.so")
    system.compile(SOURCES / "replaces_clock.c", folder / "libonly_clock.so", "-DONLY_CLOCK")
    system.compile(SOURCES / "replaces_clock_in_cxx.cpp", folder / "libclock_in_cxx.so")
    system.compile(SOURCES / "calls_at_exit.c", folder / "libcalls.so")
    system.compile(SOURCES / "opens_driver.c", folder / "opens_driver")
    system.compile(SOURCES / "allocates_on_gpu.c", folder / "allocates_on_gpu", "-l:libcuda.so.1")
    return folder


def run(folder, tmp_path, command, preload=(), **variables):
    """Returns exit code, output and errors, and the calls that the driver has counted."""
    counts = tmp_path / f"counts-{len(list(tmp_path.iterdir()))}"
    counts.mkdir()
    env = environment(tmp_path, traced=False, HOST_COUNTS=counts, LD_LIBRARY_PATH=folder, GPUMEMTRACE_LIB=LIBRARY,
                      GPUMEMTRACE_OUTPUT=tmp_path / "run.trace", **variables)
    if preload:
        env["LD_PRELOAD"] = ":".join(map(str, preload))
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    [file] = counts.iterdir()
    _, allocs, _, frees = COUNTS.unpack(file.read_bytes())
    return (done.returncode, done.stdout, done.stderr), allocs + frees


def recorded(tmp_path, code=0):
    report = json.loads(gpumemtrace("replay", tmp_path / "run.trace", "--json", code=code))["traces"][0]
    return report["complete"], report["events"]


def test_other_tool_keeps_its_calls(folder, tmp_path):
    """Both tools see each call. The refused one is an event, and reaches no driver."""
    tool = folder / "libtool.so"
    alone, calls = run(folder, tmp_path, folder / "opens_driver", [tool])
    assert alone == (0, "a large allocation: 2\n", "the tool saw 201 calls\n") and calls == 200
    traced, traced_calls = run(folder, tmp_path, folder / "opens_driver", [LIBRARY, tool])
    assert (traced, traced_calls) == (alone, calls)
    complete, events = recorded(tmp_path)
    assert complete and events["device_alloc"] + events["device_free"] == 201


@pytest.mark.parametrize("late", [False, True], ids=["", "late-call"])
@pytest.mark.parametrize("clock", ["clock", "only_clock", "clock_in_cxx"])
def test_clock_of_another_tool_is_not_used_after_its_destructor(folder, tmp_path, clock, late):
    """The recording ends before, in our destructor: libfaketime crashed at exit. A later call is
    counted."""
    tools = [folder / f"lib{clock}.so", *[folder / "libcalls.so"] * late]
    alone, calls = run(folder, tmp_path, folder / "opens_driver", tools)
    traced = run(folder, tmp_path, folder / "opens_driver", [LIBRARY, *tools])
    assert traced == (alone, calls)
    complete, events = recorded(tmp_path, code=6 if late else 0)
    assert complete != late and events["device_alloc"] + events["device_free"] == calls - late


def test_end_does_not_wait_for_the_writers_own_allocations(folder, tmp_path):
    """A late call waits two seconds for the end of the process, which waits for the writer."""
    took = []
    for attempt in range(3):
        place = tmp_path / str(attempt)
        place.mkdir()
        begin = time.monotonic()
        done, _ = run(folder, place, folder / "allocates_on_gpu", [LIBRARY])
        took.append(time.monotonic() - begin)
        assert done == (0, "", "")
        if took[-1] < 1.9:
            return
    raise AssertionError(took)


@pytest.mark.parametrize("with_run", [False, True])
def test_thread_sanitizer_finds_only_races_of_the_program(folder, tmp_path, with_run):
    compiler = os.environ.get("CC", "cc")
    runtime = subprocess.run([compiler, "-print-file-name=libtsan.so"], capture_output=True, text=True).stdout.strip()
    if "/" not in runtime:
        skip_or_fail("the compiler has no ThreadSanitizer")
    system = System("here", LIBRARY)
    for name, options, code in (("clean", [], 0), ("racing", ["-DRACE"], 66)):
        program = tmp_path / name
        system.compile(SOURCES / "many_threads.c", program, f"-L{folder}", "-l:libcuda.so.1", "-fsanitize=thread", *options)
        command, preload = ([COMMAND, "run", "--", program], []) if with_run else ([program], [LIBRARY])
        (status, output, errors), calls = run(folder, tmp_path, command, preload)
        assert (status, output) == (code, "done\n"), errors
        assert errors.count("WARNING: ThreadSanitizer: data race") == int(name == "racing") and "libgpumemtrace" not in errors
        complete, events = recorded(tmp_path)
        assert complete and events["device_alloc"] + events["device_free"] == calls == 160000
        (tmp_path / "run.trace").unlink()
