"""The reader that was written from docs/trace-format.md alone reads what the command reads."""

import json
import re
import subprocess
import sys

import pytest

from conftest import DRIVER, REPOSITORY, WORKLOADS, environment, gpumemtrace, parse_fields
from spec_reader import Trace
from test_frames import FIELD

KINDS = {"device_alloc": 1, "device_free": 2, "block_alloc": 64, "block_free": 65, "block_free_completed": 67,
         "torch_memory": 101}
QUOTED_API = re.compile(r' api=("[^"]*")')
LINKS = {1: "python", 2: "c", 3: "backward"}


def compare(trace, named):
    """Compares events and definitions of a Trace with what the command prints."""
    lines = gpumemtrace("dump", named, "--stacks").splitlines()
    # The name of a method contains spaces.
    printed = [parse_fields(line) | {"api": json.loads(api[1]) if (api := QUOTED_API.search(line)) else parse_fields(line)["api"]}
               for line in lines if line.startswith("seq=")]
    ours = sorted(trace.events, key=lambda event: event["seq"])
    assert len(ours) == len(printed) > 100
    for event, other in zip(ours, printed):
        assert (event["seq"], event["time_ns"], event["tid"]) == tuple(int(other[name]) for name in ("seq", "time_ns", "tid"))
        assert KINDS.get(other["kind"], event["kind"]) == event["kind"]
        numbers = {name: int(other[name], 0) for name in ("addr", "size", "aux0", "aux1", "rc", "python", "native")}
        assert {name: event[name] for name in numbers} == numbers
        assert other["dev"] == ("?" if event["dev"] == 255 else str(event["dev"]))
        assert other["api"] == (trace.meta["apis"][event["api"]] if event["api"] else "-")
        detail = {name: int(other[name], 0) for name in ("requested", "stream", "pool") if name in other}
        assert {name: event[name] for name in ("requested", "stream", "pool") if name in event} == detail
    frames = {}
    for line in lines:
        kind = line.split(" ", 1)[0]
        if kind in ("frame", "native", "code"):
            fields = {key: json.loads(text) if text.startswith('"') else text for key, text in FIELD.findall(line)}
            frames[kind, int(fields["id"])] = fields
    assert len(frames) == len(trace.codes) + len(trace.python) + len(trace.native)
    for number, node in trace.python.items():
        frame = frames["frame", number]
        assert int(frame["parent"]) == node["parent"]
        assert frame.get("link") == LINKS.get(trace.links[number])
        if code := trace.codes.get(node["code"]):
            assert (frame["file"], frame["function"]) == (code["file"], code["name"])
    for number, node in trace.native.items():
        assert int(frames["native", number]["address"], 0) == node["address"]


def check_index(trace):
    """Compares the last INDEX of a trace in one file with its contents, and its TAIL with the offsets."""
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
    offsets = [index["at"] for index in trace.indexes]
    for previous, index in zip([None, *offsets], trace.indexes):
        assert index["previous"] == (0 if previous is None else index["at"] - previous)


def test_reader_matches_dump_of_training(torch_version, run_python):
    run = run_python(torch_version, "train.py", "--model", "mlp", GPUMEMTRACE_STACKS="both")
    trace = Trace([run.trace])
    compare(trace, run.trace)
    check_index(trace)


@pytest.mark.parametrize("limit", ["", "64KiB"], ids=["one", "parts"])
def test_reader_matches_dump_of_driver_calls_in_one_file_and_in_parts(tmp_path, limit):
    driver = tmp_path / "libcuda.so.1"
    driver.symlink_to(DRIVER)
    subprocess.run([sys.executable, WORKLOADS / "parts.py", driver, "120000"], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL,
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
