"""No hook, and nothing that a hook waits for, takes the loader's lock.

The program holds that lock while the constructors of a library run, as each import of a Python
extension does. tests/host/loader_lock/plugin.c is such a library.
"""

import json
import re
import subprocess

import pytest

from conftest import LIBRARY, driver_calls, dump, environment, gpumemtrace
from host_matrix.programs import HOST, System
from host_matrix.runs import COUNTS

#: A run that is not over by then hangs.
SECONDS = 60
#: Exported functions that the program must not call with null pointers, or at all.
NOT_CALLED = {"_exit", "_Exit", "dlsym", "dlclose", "cuGetProcAddress", "cuGetProcAddress_v2", "InitializeInjectionNvtx2", "__tsan_default_suppressions"}
#: Null is no argument of PyTorch's engine.
NOT_CALLED_PREFIXES = ("_ZN5torch8autograd6Engine", "gpumemtrace")


def hooks():
    """The names of the functions that the library exports for callers that are linked to them."""
    names = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^[0-9a-f]+ T (\S+)$", names, re.M)
    return [name for name in found if name not in NOT_CALLED and not name.startswith(NOT_CALLED_PREFIXES)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The program, its plugin, and a driver in which each further function fails."""
    folder = tmp_path_factory.mktemp("loader-lock")
    system = System("here", LIBRARY)
    stubs = folder / "stubs.c"
    stubs.write_text("".join(f"__attribute__((weak)) int {name}(void) {{ return 1; }}\n" for name in hooks()))
    # The driver's own functions would write to null pointers.
    own = re.findall(r"^int (cu\w+)\(", (HOST / "driver.c").read_text(), re.M)
    (folder / "calls.h").write_text("".join(f"CALL({name})\n" for name in hooks() if name not in own))
    system.compile(HOST / "driver.c", folder / "libcuda.so.1", stubs, "-Wl,-soname,libcuda.so.1")
    system.compile(HOST / "loader_lock" / "plugin.c", folder / "plugin.so", "-l:libcuda.so.1")
    system.compile(HOST / "loader_lock" / "program.c", folder / "program", f"-I{folder}", "-rdynamic", "-l:libcuda.so.1")
    return folder


def run(folder, tmp_path, act, warm, constructor, traced=True):
    """Runs the program; returns exit code, output, and the calls that the driver has counted."""
    counts = tmp_path / f"counts-{traced}"
    counts.mkdir()
    extra = {"HOST_COUNTS": counts, "CONSTRUCTOR": constructor, "LD_LIBRARY_PATH": folder, "GPUMEMTRACE_OUTPUT": tmp_path / "run.trace"}
    done = subprocess.run([folder / "program", act, str(warm)], env=environment(tmp_path, traced, **extra), timeout=SECONDS,
                          capture_output=True, text=True)
    [file] = counts.iterdir()
    begun, allocs, _, frees = COUNTS.unpack(file.read_bytes())
    assert begun == allocs
    return done.returncode, done.stdout, done.stderr, allocs + frees


def check(folder, tmp_path, *arguments):
    """The program ends as it does untraced, and each counted call is in a complete trace."""
    alone, traced = (run(folder, tmp_path, *arguments, traced=traced) for traced in (False, True))
    assert traced == alone
    assert alone[:2] == ((3, "") if "exit" in arguments else (0, "done\n"))
    [trace] = tmp_path.glob("*.trace")
    report = json.loads(gpumemtrace("replay", trace, "--json"))["traces"][0]
    assert report["incomplete"] == []
    return trace, alone[3]


@pytest.mark.parametrize("warm", [0, 1, 63, 64])
def test_constructor_may_want_a_lock_that_is_held_around_an_allocation(folder, tmp_path, warm):
    # The first 64 allocations look for PyTorch.
    trace, calls = check(folder, tmp_path, "locked_pair", warm, "lock")
    assert calls == warm + 1 == len(driver_calls(dump(trace)))


@pytest.mark.parametrize("warm", [0, 1])
def test_constructor_may_wait_for_a_thread_with_gpu_calls(folder, tmp_path, warm):
    trace, calls = check(folder, tmp_path, "nothing", warm, "thread")
    assert calls == warm + 2 == len(driver_calls(dump(trace)))


def test_each_hook_runs_for_the_first_time_while_a_constructor_waits_for_it(folder, tmp_path):
    trace, _ = check(folder, tmp_path, "every_call", 0, "wait")
    called = {event["api"] for event in driver_calls(dump(trace))}
    asked = set(re.findall(r"\((cu\w+)\)", (folder / "calls.h").read_text()))
    # A node without memory is no event.
    assert asked - called == {"cuGraphAddNode", "cuGraphAddNode_v2", "cuGraphAddNode_v3"}


def test_calls_in_a_constructor_are_drained_while_it_runs(folder, tmp_path):
    # A million calls do not fit into a ring.
    _, calls = check(folder, tmp_path, "nothing", 1, "storm")
    assert calls == 1_000_001


def test_exit_in_a_constructor_completes_the_trace(folder, tmp_path):
    trace, calls = check(folder, tmp_path, "nothing", 1, "exit")
    assert calls == 3 == len(driver_calls(dump(trace)))
