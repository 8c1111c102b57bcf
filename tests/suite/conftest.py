"""Shared by all suites: the built library and command, the environments, and how programs are run.

scripts/test makes the environments; GPUMEMTRACE_VENVS lists them as torch-version=folder,...
"""

import json
import os
import shutil
import signal
import subprocess
import zlib
from dataclasses import dataclass
from pathlib import Path

import prepared_python
import pytest
import recordings
from consistency import assert_consistent
from outcomes import *  # noqa: F403 (hooks)

REPOSITORY = Path(__file__).resolve().parents[2]
WORKLOADS = REPOSITORY / "tests" / "workloads"
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
#: The folder with the build that is tested.
BUILD = Path(os.environ.get("GPUMEMTRACE_BUILD", TARGET / "ci"))
os.environ["GPUMEMTRACE_BUILD"] = str(BUILD)
LIBRARY = BUILD / "libgpumemtrace.so"
COMMAND = BUILD / "gpumemtrace"
DRIVER = BUILD / "libsimgpu_driver.so"
# A background shell ignores SIGINT, and programs would inherit that; tests send SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Without COLUMNS, the command does not wrap what it prints to a pipe. GNU readline, which pytest
# loads, sets it past os.environ.
os.environ.pop("COLUMNS", None)
os.unsetenv("COLUMNS")
VENVS = {version: str(Path(folder).absolute())
         for version, _, folder in (pair.partition("=") for pair in os.environ.get("GPUMEMTRACE_VENVS", "").split(",") if pair)}
#: Everything, also what takes too long for CI (scripts/test).
FULL = bool(os.environ.get("GPUMEMTRACE_FULL"))
PYTHONS = [pair for pair in os.environ.get("GPUMEMTRACE_PYTHONS", "").split(",") if pair]
#: What libstdc++ prints when CPython ends a thread inside C++ code that must not throw.
ABORTED = "terminate called without an active exception"


def pytest_generate_tests(metafunc):
    """Runs a case with the newest PyTorch, and with all if it has the mark `every_torch`."""
    if "torch_version" in metafunc.fixturenames:
        if not VENVS:
            raise pytest.UsageError("GPUMEMTRACE_VENVS is not set: run scripts/test, which makes the environments")
        has_all = FULL or metafunc.definition.get_closest_marker("every_torch")
        metafunc.parametrize("torch_version", list(VENVS) if has_all else list(VENVS)[:1])


def pytest_collection_modifyitems(config, items):
    """Leaves the long part out: tests with the mark `long`, and most cases of tests with the mark
    `sampled(N)`, of which one in N runs. Hashes of their names decide, so the choice is the same in
    every run.

    With GPUMEMTRACE_FULL=1, all run (scripts/nightly). Tests that are asked for by name run, too:
    scripts/checks/suites does so for tests that failed.
    """
    if FULL or all("::" in argument for argument in config.args):
        return
    cases, chosen = {}, set()
    for item in items:
        sampled = item.get_closest_marker("sampled")
        if not item.get_closest_marker("long"):
            test = f"{item.location[0]}::{item.originalname}" if sampled else item
            cases.setdefault((test, sampled.args[0] if sampled else 1), []).append(item)
    for (_, share), same in cases.items():
        same.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
        chosen.update(same[:-(-len(same) // share)])
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


@dataclass
class Run:
    """A finished program and its folder."""

    process: subprocess.CompletedProcess
    folder: Path

    @property
    def trace(self):
        return self.folder / "run.trace"

    def events(self):
        return dump(self.trace)

    def report(self, *flags, code=0):
        return json.loads(gpumemtrace("replay", self.trace, *flags, "--json", code=code))

    def calls(self):
        """Returns the simulated driver's log."""
        return read_log(self.folder / "driver.log")


def gpumemtrace(*arguments, code=0):
    """Runs the command and returns its standard output. Any exit code is right if `code` is None.
    The numbers of a report of `replay` must not contradict each other."""
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert code is None or done.returncode == code, f"exit code {done.returncode}, not {code}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    if arguments[0] == "replay" and done.stdout.startswith("{"):
        assert_consistent(json.loads(done.stdout))
    return done.stdout


def sentences(text):
    """Joins the lines of a text, so that line breaks inside sentences do not matter."""
    return " ".join(text.split())


def parse_fields(line):
    return dict(part.split("=", 1) for part in line.split() if "=" in part) | {
        "in_flight": line.endswith(" in_flight")
    }


def dump(trace, code=0):
    """Returns every event of a trace, as `gpumemtrace dump` prints it."""
    lines = gpumemtrace("dump", trace, code=code).splitlines()
    events = []
    for line in lines:
        if line.startswith("seq="):
            fields = parse_fields(line)
            for name in ("size", "aux0", "aux1", "rc", "tid", "python", "native"):
                fields[name] = int(fields[name], 0)
            fields["addr"] = int(fields["addr"], 16)
            events.append(fields)
    return events


def driver_calls(events):
    """Returns the program's driver calls that change memory: no allocator events, no queries."""
    return [event for event in events if event["api"] != "-" and event["kind"] != "memory_sample"]


def held_after_each_call(trace):
    """Returns replay's held bytes after each driver call, by place (device ordinal, host, managed,
    foreign)."""
    lines = (line for line in gpumemtrace("dump", trace, "--totals").splitlines() if line.startswith("seq="))
    held = (parse_fields(line).get("held") for line in lines if " kind=memory_sample " not in line)
    return [dict(part.split(":") for part in places.split(",") if part) for places in held if places is not None]


def read_log(path):
    """Returns the simulator's log: one dict per driver call, in its order. A kill may have cut the
    last line; its call did not return."""
    calls = []
    for line in path.read_text().split("\n")[:-1]:
        if line.startswith("#") or not line.strip():
            continue
        seq, pid, tid, api, dev, addr, size, stream, rc, *rest = line.split()
        call = {"seq": int(seq), "pid": int(pid), "tid": int(tid), "api": api, "addr": int(addr, 16), "size": int(size),
                "stream": int(stream, 16), "rc": int(rc), "dev": dev}
        call |= dict(part.split("=", 1) for part in rest if "=" in part)
        calls.append(call)
    return sorted(calls, key=lambda call: call["seq"])


def environment(folder, traced=True, **extra):
    """Returns an environment without variables of the caller that would change a result."""
    env = {key: value for key, value in os.environ.items()
           if not key.startswith(("GPUMEMTRACE_", "SIMGPU_", "PYTORCH_", "LD_")) and key not in ("RANK", "WORLD_SIZE")}
    env["SIMGPU_LOG"] = str(folder / "driver.log")
    if traced:
        env["LD_PRELOAD"] = str(LIBRARY)
    env.update({key: str(value) for key, value in extra.items()})
    return env


def python_of(torch_version):
    return Path(VENVS[torch_version]) / "bin" / "python"


def run_program(command, folder, timeout=600, real_start=False, whole_teardown=False, **how):
    """Runs a PyTorch program, or several ranks, to the end.

    A program that is one file runs in a fork of a Python that has imported PyTorch already, unless
    `real_start` is true (prepared_python.py). At its end, it frees the modules of PyTorch only with
    `whole_teardown`.

    PyTorch 2.15.0 sometimes aborts after its work is done, traced or not (about one run in 60): a
    backward thread releases a Python object, for which it needs the GIL, while the interpreter
    ends. Such a run is repeated, in a clean folder.
    """
    command, before = [str(word) for word in command], set(folder.iterdir())
    pythons = [str(python_of(version)) for version in VENVS]
    is_prepared = not real_start and not FULL and how.keys() == {"env"} and prepared_python.can_run(command, how["env"], pythons)
    for _ in range(5):
        if is_prepared:
            done = prepared_python.run(command, folder, how["env"], timeout, whole_teardown)
        else:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout, **how)
        if done.returncode == 0 or ABORTED not in done.stderr:
            break
        for path in set(folder.iterdir()) - before:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return done


@pytest.fixture(scope="session")
def recording_store(tmp_path_factory, worker_id):
    """The folder of recordings, which all workers share."""
    folder = tmp_path_factory.getbasetemp()
    return (folder if worker_id == "master" else folder.parent) / "recordings"


@pytest.fixture
def run_python(tmp_path, recording_store, request):
    """Runs a workload in a PyTorch environment, traced by default.

    A program with the same arguments and variables is run once for all tests (recordings.py),
    unless `real_start` is true. The mark `whole_teardown` is for tests of what comes after the end
    of a program.
    """
    whole_teardown = request.node.get_closest_marker("whole_teardown") is not None

    def run(torch_version, script, *arguments, traced=True, check=True, name="traced", own_libraries=False, real_start=False, **extra):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        if own_libraries:
            # A real machine has them on the loader's path.
            extra["LD_LIBRARY_PATH"] = next(Path(VENVS[torch_version]).rglob("libcuda.so.1")).parent
        command = [str(word) for word in (python_of(torch_version), WORKLOADS / script, *arguments)]
        variables = environment(folder, traced, **extra)
        if real_start or FULL or not recordings.is_shareable(tmp_path, command, variables):
            process = run_program(command, folder, real_start=real_start, whole_teardown=whole_teardown, env=variables)
        else:
            process = recordings.run_once(recording_store, tmp_path, name, command, variables, run_program, whole_teardown=whole_teardown)
        if check:
            assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-4000:]
        return Run(process, folder)

    return run
