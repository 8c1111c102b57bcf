"""Every way to a driver function goes through the recorder. The oracle is the simulated driver's
log.

Each route is a small C program in tests/routes; three of them call every row of the table.
"""

import shutil
import subprocess
import sys

import pytest

from conftest import DRIVER, LIBRARY, REPOSITORY, driver_calls, gpumemtrace, held_after_each_call
from ground_truth import NOT_EVENTS, assert_calls_equal_driver, assert_held_equals_driver
from route_programs import MIB, ROUTES, place  # noqa: F401 (fixture)

def test_linked_program(place):
    done = place.run(place.program("linked_program", "-l:libcuda.so.1"))
    assert (done.returncode, done.stderr) == (0, "")
    place.check_all_recorded([2, 4, 6])


@pytest.mark.parametrize("name,sizes", [("dlsym_lookup", [2]), ("get_proc_address", [2, 4, 6, 8]), ("dlerror", [2]), ("driver_reload", [2, 2, 2])])
@pytest.mark.parametrize("addresses", ["exported", "other"])
def test_program_that_looks_functions_up(place, name, sizes, addresses):
    program = place.program(name)
    assert place.run(program, traced=False).returncode == 0, "the program works untraced"
    (place.folder / "driver.log").unlink()
    done = place.run(program, SIMGPU_ALT_PROCADDR=int(addresses == "other"))
    assert (done.returncode, done.stderr) == (0, "")
    place.check_all_recorded(sizes)


def test_module_loaded_with_rtld_local(place):
    module = place.compile("extension.so", ROUTES / "linked_extension.c", "-l:libcuda.so.1")
    done = place.run(place.program("dlopen_libraries"), module)
    assert (done.returncode, done.stderr) == (0, "")
    place.check_all_recorded([2])


def test_destructor_of_a_linked_library(place):
    """The loader runs it after ours."""
    place.compile("libdestructor.so", ROUTES / "linked_destructor.c", "-l:libcuda.so.1")
    program = place.program("linked_program", "-Wl,--no-as-needed", "-ldestructor", "-l:libcuda.so.1")
    done = place.run(program)
    assert (done.returncode, done.stderr) == (0, "")
    place.check_all_recorded([2, 4, 6, 8])


def test_two_runtimes_and_a_linked_module(place):
    runtimes = [place.compile(f"runtime{version}.so", ROUTES / "bundled_runtime.c") for version in (12, 13)]
    module = place.compile("extension.so", ROUTES / "linked_extension.c", "-l:libcuda.so.1")
    done = place.run(place.program("dlopen_libraries"), *runtimes, module)
    assert (done.returncode, done.stderr) == (0, "")
    place.check_all_recorded([2, 4, 6])


def test_rtld_next_forwarder_still_forwards(place):
    place.compile("libforwarder.so", ROUTES / "rtld_next_forwarder.c")
    program = place.program("forwarded_program", "-Wl,--no-as-needed", "-lforwarder", "-l:libcuda.so.1")
    assert place.run(program, traced=False).returncode == 0, "the program works untraced"
    (place.folder / "driver.log").unlink()
    done = place.run(program)
    assert (done.returncode, done.stderr) == (0, "")
    place.check_all_recorded([2, 4])


def test_forwarder_preloaded_before_us_still_forwards(place):
    forwarder = place.compile("libforwarder.so", ROUTES / "rtld_next_forwarder.c")
    program = place.program("forwarded_program", "-Wl,--no-as-needed", "-lforwarder", "-l:libcuda.so.1")
    done = place.run(program, LD_PRELOAD=f"{forwarder}:{LIBRARY}")
    assert (done.returncode, done.stderr) == (0, "")
    place.check_all_recorded([2, 4])


def test_second_driver_copy_works_and_is_counted(place):
    (place.folder / "other").mkdir()
    second = shutil.copy(DRIVER, place.folder / "other" / "libcuda.so.1")
    done = place.run(place.program("two_drivers"), place.folder / "libcuda.so.1", second)
    assert (done.returncode, done.stderr) == (0, "")
    allocations = [event["size"] for event in place.events() if event["kind"] == "device_alloc"]
    assert allocations == [2 * MIB], "the first copy is recorded"
    assert place.uncovered() == 3, "the other's primary context, allocation and free"


def test_functions_with_known_name_but_other_version_are_counted_only(place):
    done = place.run(place.program("unknown_functions"))
    assert (done.returncode, done.stderr) == (0, "")
    assert [event["size"] for event in place.events() if event["kind"] == "device_alloc"] == [4 * MIB]
    assert place.uncovered() == 7
    head = gpumemtrace("replay", place.folder / "run.trace")
    head = head.partition("\n\n")[0]
    assert "7 calls" in head and "not intercepted: cu" in head, head


def test_deepbind_is_not_intercepted_and_reported(place):
    runtime = place.compile("runtime12.so", ROUTES / "bundled_runtime.c")
    done = place.run(place.program("dlopen_libraries"), "-d", runtime)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("gpumemtrace: the CUDA driver was loaded, but ") and done.stderr.count("\n") == 1
    assert not (place.folder / "run.trace").exists()
    assert len(place.calls()) == 3, "the program works as untraced"


def test_deepbind_beside_intercepted_module_loses_only_its_own_calls(place):
    """A known limit: calls of the other module are counted nowhere."""
    ordinary, bound = (place.compile(name, ROUTES / "bundled_runtime.c") for name in ("ordinary.so", "bound.so"))
    done = place.run(place.program("dlopen_libraries"), ordinary, "-d", bound)
    assert (done.returncode, done.stderr) == (0, "")
    assert [event["size"] for event in place.events() if event["kind"] == "device_alloc"] == [2 * MIB]
    assert [call["size"] for call in place.calls() if call["api"] == "cuMemAlloc_v2"] == [2 * MIB, 6 * MIB]


def test_recorder_loaded_after_driver_reports_and_breaks_nothing(place):
    done = place.run(place.program("late_preload"), LIBRARY, traced=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("gpumemtrace: loaded after the CUDA driver: ") and done.stderr.count("\n") == 1
    assert not (place.folder / "run.trace").exists()


def every_row(place, route, mode, **extra):
    if route == "linked":
        source = place.folder / "linked.c"
        made = subprocess.run([sys.executable, ROUTES / "generate_linked.py"], capture_output=True, text=True, check=True)
        source.write_text(made.stdout)
        place.compile("liblinked.so", source, "-l:libcuda.so.1")
    return place.run(sys.executable, ROUTES / "every_row.py", route, place.folder, mode, **extra)


def rows():
    """Returns the rows of the table in the built library, as its traces list them."""
    sys.path.insert(0, str(ROUTES))
    from every_row import VERSIONS

    return set(VERSIONS)


def listed_apis(trace):
    line = next(line for line in gpumemtrace("dump", trace).splitlines() if line.startswith("# meta apis="))
    return set(line.removeprefix("# meta apis=").strip('"').split()) - {"-"}


@pytest.mark.parametrize("addresses", ["exported", "other"])
@pytest.mark.parametrize("route", ["dlsym", "proc_address", "linked"])
def test_every_row_is_recorded_and_held_bytes_equal_driver(place, route, addresses):
    done = every_row(place, route, "work", SIMGPU_ALT_PROCADDR=int(addresses == "other"))
    assert (done.returncode, done.stderr) == (0, "")
    called, trace = set(done.stdout.split()), place.folder / "run.trace"
    assert called == rows() == listed_apis(trace), "a row without a call, or a call without a row"
    events, calls = place.events(), place.calls()
    assert_calls_equal_driver(events, calls)
    assert {event["api"] for event in events} - {"-"} == called
    assert place.uncovered() == 0
    held = assert_held_equals_driver(trace, calls)
    without_slack = [call for call in calls if call["slack"] == "0" and call["dev"] == "0"]
    assert len(without_slack) > 100, "most calls need no page rounding"
    assert {"host", "managed", "foreign"} <= set(held[-1]) and set(held[-1].values()) == {"0"}, held[-1]
    checker = REPOSITORY / "crates" / "simgpu" / "tests" / "check_log.py"
    assert subprocess.run([sys.executable, checker, "--quiet", place.folder / "driver.log"]).returncode == 0


@pytest.mark.parametrize("route", ["dlsym", "proc_address", "linked"])
def test_every_failed_call_is_recorded_without_bytes(place, route):
    plan = ",".join(f"{name}:1:999" for name in sorted(rows()))
    done = every_row(place, route, "fail", SIMGPU_FAIL=plan)
    assert (done.returncode, done.stderr) == (0, "")
    events = place.events()
    assert {event["api"] for event in events if event["rc"] == 999} == rows()
    moving = [call["api"] for call in place.calls() if call["api"] not in NOT_EVENTS]
    assert [event["api"] for event in driver_calls(events)] == moving
    assert all(not held or set(held.values()) == {"0"} for held in held_after_each_call(place.folder / "run.trace"))


@pytest.mark.parametrize("seed", range(6))
def test_random_calls_are_accounted_like_the_driver(place, seed):
    program = ROUTES / "random_calls.py"
    done = place.run(sys.executable, program, place.folder, str(seed), "1500", SIMGPU_DEVICES=2, SIMGPU_MEM="1G")
    assert (done.returncode, done.stderr) == (0, "")
    events, calls = place.events(), place.calls()
    assert_calls_equal_driver(events, calls)
    assert_held_equals_driver(place.folder / "run.trace", calls)
    failed = sum(event["rc"] != 0 for event in events)
    assert 100 < failed < len(events) - 100, "right calls and wrong ones"
