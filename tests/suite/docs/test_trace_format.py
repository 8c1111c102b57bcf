"""A reader written from docs/trace-format.md alone reads the same events as the command."""

import subprocess
import sys

import pytest

from conftest import DRIVER, REPOSITORY, WORKLOADS, environment, gpumemtrace
from spec_reader import Trace
from spec_reader_check import compare

def check_index(trace):
    """Checks the last index of a single-file trace, and its position."""
    last = trace.indexes[-1]
    assert last["placed"] == len(trace.events) == trace.end["events"]
    kinds = {}
    for event in trace.events:
        kinds[event["kind"]] = kinds.get(event["kind"], 0) + 1
    assert last["kinds"] == kinds
    assert last["threads"] == len({event["tid"] for event in trace.events})
    assert (last["codes"], last["py_nodes"], last["native_nodes"]) == (len(trace.codes), len(trace.python), len(trace.native))
    assert (last["lowest"], last["beyond"]) == (0, trace.end["events"])
    assert (trace.tail["at"] - trace.tail["index"], trace.tail["at"] - trace.tail["end"]) == (last["at"], trace.end["at"])
    places = [index["at"] for index in trace.indexes]
    for before, index in zip([None, *places], trace.indexes):
        assert index["previous"] == (0 if before is None else index["at"] - before)


def test_reader_agrees_on_training(torch_version, run_python):
    run = run_python(torch_version, "training/train.py", "--model", "mlp", GPUMEMTRACE_STACKS="both")
    trace = Trace([run.trace])
    compare(trace, run.trace)
    check_index(trace)


@pytest.mark.parametrize("limit", ["", "64KiB"], ids=["one", "parts"])
def test_reader_agrees_on_many_driver_calls(tmp_path, limit):
    driver = tmp_path / "libcuda.so.1"
    driver.symlink_to(DRIVER)
    subprocess.run([sys.executable, WORKLOADS / "driver/alloc_free.py", driver, "120000"], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL,
                   env=environment(tmp_path, GPUMEMTRACE_ROTATE=limit, GPUMEMTRACE_MEMORY="32MiB"))
    parts = sorted(tmp_path.glob("run.*.part*.trace"), key=lambda path: int(path.name.split(".part")[1].split(".")[0]))
    trace = Trace([*tmp_path.glob("run.*.stacks.trace"), *parts, tmp_path / "run.trace"])
    assert (len(parts) > 1) == (trace.meta.get("part", 0) > 1) == bool(limit)
    compare(trace, tmp_path / "run.trace")
    if not limit:
        assert len(trace.indexes) >= 1
        check_index(trace)


def test_golden_trace_dumps_to_its_text():
    """Recorded with PyTorch 2.15.0 and CPython 3.12: details, frame links, forward lines, an INDEX."""
    golden = REPOSITORY / "tests" / "golden" / "cuda-train.trace"
    assert gpumemtrace("dump", "--stacks", golden) == golden.with_suffix(".txt").read_text()
    trace = Trace([golden])
    check_index(trace)
    assert {node: link for node, link in trace.links.items() if link == 3}, "no forward line"
    assert sum("requested" in event for event in trace.events) > 10
