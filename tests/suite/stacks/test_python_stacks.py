"""Compares Python stacks of random programs with sys._getframe(), on every available CPython.

GPUMEMTRACE_STACK_SEEDS and GPUMEMTRACE_DROPPED enlarge the run (200000 functions take about 20 s
per CPython). GPUMEMTRACE_GREENLETS (interpreter=folder,...) adds greenlets; by default none run.
"""

import ast
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from conftest import DRIVER, PYTHONS, WORKLOADS, dump, environment, gpumemtrace
from stack_dump import stacks

#: The recorder keeps at most this many frames of a stack.
MAX_DEPTH = 256
SEEDS = range(int(os.environ.get("GPUMEMTRACE_STACK_SEEDS", 2)))
DROPPED = int(os.environ.get("GPUMEMTRACE_DROPPED", 20_000))
each_python = pytest.mark.parametrize("python", PYTHONS, ids=lambda path: Path(path).resolve().name + "-" + Path(path).parts[-3])


def run(tmp_path, python, *arguments, **more):
    """Runs the workload; returns the lines of its output and its trace."""
    driver = tmp_path / "libcuda.so.1"
    driver.symlink_to(DRIVER)
    extra = more | ({"PYTHONPATH": packages(python)} if packages(python) else {})
    done = subprocess.run(
        [python, WORKLOADS / "stacks/python_stacks.py", driver, tmp_path / "expected.json", *map(str, arguments)],
        cwd=tmp_path, env=environment(tmp_path, **extra), capture_output=True, text=True, timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "gpumemtrace" not in done.stderr
    lines = (tmp_path / "expected.json").read_text().splitlines() if (tmp_path / "expected.json").exists() else []
    return [ast.literal_eval(line) for line in lines], tmp_path / "run.trace"


def packages(python):
    """Returns the folder with greenlet for an interpreter, or None."""
    pairs = os.environ.get("GPUMEMTRACE_GREENLETS", "").split(",")
    return dict(pair.split("=", 1) for pair in pairs if pair).get(python)


def seen_by_size(trace):
    stack = stacks(trace)
    return {event["size"]: [list(frame) for frame in stack(event["python"])]
            for event in dump(trace) if event["kind"] == "device_alloc"}


ALLOCATION = """
import ctypes
cuda, context = ctypes.CDLL("./libcuda.so.1"), ctypes.c_void_p()
cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)
assert cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(4096)) == 0
"""


def test_older_python_is_recorded_with_native_stacks(tmp_path):
    """gpumemtrace does not read the frames of this Python. One line says so; no event is missing."""
    python = os.environ.get("GPUMEMTRACE_OLD_PYTHON")
    if not python:
        pytest.skip("no CPython 3.8 or 3.9 here")
    (tmp_path / "libcuda.so.1").symlink_to(DRIVER)
    done = subprocess.run([python, "-c", ALLOCATION], cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    [line] = done.stderr.splitlines()
    assert line.startswith("gpumemtrace: Python call sites are not recorded: Python 3.") and "CPython 3.10 to 3.14" in line
    text = gpumemtrace("replay", tmp_path / "run.trace", "--peak")
    assert "Python call sites were not recorded" in text and "4.00 KiB" in text and "_ctypes" in text


@pytest.mark.parametrize("seed", SEEDS)
@each_python
def test_random_programs_match_getframe(tmp_path, python, seed):
    expected, trace = run(tmp_path, python, "random", seed)
    seen = seen_by_size(trace)
    assert len(seen) == len(expected) > 150
    for size, frames in expected:
        # CPython reports None for an unknown line; the trace has 0.
        assert seen[size] == [[file, line or 0, name] for file, line, name in frames[:MAX_DEPTH]], f"size {size}"
    assert max(len(frames) for _, frames in expected) > MAX_DEPTH


@pytest.mark.parametrize("depth", [1, 3, 20])
@each_python
def test_depth_limit_keeps_innermost_frames(tmp_path, python, depth):
    expected, trace = run(tmp_path, python, "random", 0, GPUMEMTRACE_DEPTH=depth)
    seen = seen_by_size(trace)
    for size, frames in expected:
        assert seen[size] == [[file, line or 0, name] for file, line, name in frames[:depth]], f"size {size}"
    losses = json.loads(gpumemtrace("replay", trace, "--json"))["traces"][0]["losses"]
    assert losses["truncated_stacks"] >= sum(len(frames) > depth for _, frames in expected) > 0


@each_python
def test_functions_compiled_and_dropped(tmp_path, python):
    _, trace = run(tmp_path, python, "dropped", DROPPED)
    frames = {}
    innermost = re.compile(r'frame id=(\d+) parent=\d+ .*?file="?(.*?)"? line=(\d+) function="?(.*?)"?(?: |$)')
    for line in gpumemtrace("dump", trace, "--stacks").splitlines():
        if found := innermost.match(line):
            frames[found[1]] = found.group(2, 3, 4)
    compared = 0
    event = re.compile(r"seq=.* kind=device_alloc .*?size=(\d+) .*?python=(\d+)")
    for line in gpumemtrace("dump", trace).splitlines():
        if not (found := event.match(line)):
            continue
        i = int(found[1]) // 512 - 1
        kind, blank = i // 1000 % 4, i % 3 if i // 500 % 2 else 0
        file, line, name = frames[found[2]]
        wanted = [("made.py", 2, f"f{i:06}"), (f"<made {i:06}>", 2, "f"), (f"<made {i:06}>", 2, f"f{i:06}"),
                  ("made.py", 3, f"a_function_{i:06}_of_many.<locals>.inner")][kind]
        if kind == 3 and name == "inner":
            wanted = wanted[:2] + ("inner",)
        assert (file, int(line), name) == (wanted[0], wanted[1] + blank, wanted[2])
        compared += 1
    assert compared == DROPPED


@each_python
def test_concurrent_threads_run_the_same_functions(tmp_path, python):
    expected, trace = run(tmp_path, python, "parallel", 250)
    seen = seen_by_size(trace)
    assert len(seen) == len(expected) == 1000
    for size, frames in expected:
        assert seen[size] == frames, f"size {size}"


@each_python
def test_sub_interpreter(tmp_path, python):
    """A thread slot holds one thread state: either the sub-interpreter's or its caller's."""
    expected, trace = run(tmp_path, python, "sub")
    # Before 3.11 names are unqualified; nothing here is nested, so both forms are equal.
    expected = dict(expected)
    seen = seen_by_size(trace)
    for size in (512, 1024):
        assert seen[size] == expected[size]
    assert seen[1 << 20] in (expected[1 << 20], expected[0])


@pytest.mark.parametrize("how", [[], ["registered"]], ids=["finalizers", "at-exit"])
@each_python
def test_during_interpreter_shutdown(tmp_path, python, how):
    expected, trace = run(tmp_path, python, "end", *how)
    seen = seen_by_size(trace)
    # CPython may skip finalizers during shutdown, so their number varies.
    assert len(expected) == 2 if how else len(expected) >= 1
    for size, frames in expected:
        assert seen[size] == frames, f"size {size}"
