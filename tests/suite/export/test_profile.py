"""`gpumemtrace.profile()`: torch.profiler's trace and the memory of a run in one file.

The oracle is Perfetto's trace processor: what it reads from the JSON of torch.profiler alone must
be in the merged file, at the same time on the wall clock.
"""

import functools
import gzip
import json
import os

import pytest

from conftest import BUILD, REPOSITORY, VENVS, WORKLOADS, dump, environment, gpumemtrace, run_program, sentences
from perfetto_trace import PROBLEMS, PerfettoTrace, query

PACKAGE = REPOSITORY / "python"
#: The last time of a slice is its end.
SLICES = "select ts, dur, name, category, depth from slice"
FLOWS = """select a.ts source_ts, a.name source, b.ts target_ts, b.name target
           from flow join slice a on slice_out = a.id join slice b on slice_in = b.id"""
#: The clocks of both recordings differ by less.
MAX_DIFFERENCE_NS = 100_000


def run_in(folder, torch_version, way, traced=True, path=f"{BUILD}:{os.environ['PATH']}"):
    """Runs a way of the workload, recorded by default; returns the finished process and its folder."""
    python = f"{VENVS[torch_version]}/bin/python"
    env = environment(folder, traced, PYTHONPATH=PACKAGE, PATH=path)
    return run_program([python, WORKLOADS / "package/profiled_training.py", way], folder, env=env), folder


@pytest.fixture
def run_profiled(tmp_path):
    return functools.partial(run_in, tmp_path)


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory):
    """Returns the run of the way `plain` with a version, which happens once."""
    return functools.cache(lambda torch_version: run_in(tmp_path_factory.mktemp("plain"), torch_version, "plain"))


def on_the_wall_clock(rows, base_ns, *times):
    """Returns the rows as tuples, with the base added to the columns of times."""
    return sorted(tuple(int(value) + base_ns if name in times else value for name, value in row.items()) for row in rows)


def test_merged_file_holds_the_profile_and_the_memory(plain_run, torch_version):
    done, folder = plain_run(torch_version)
    assert done.returncode == 0, done.stderr
    assert "gpumemtrace: profile and GPU memory written to merged.pftrace" in done.stderr
    profile = json.loads((folder / "exported.json").read_text())
    assert profile == json.loads(gzip.decompress((folder / "again.json.gz").read_bytes()))
    base = profile["baseTimeNanoseconds"]
    alone_slices, alone_flows = query(folder / "exported.json", SLICES, FLOWS)
    problems, slices, flows = query(folder / "merged.pftrace", PROBLEMS, SLICES, FLOWS)
    assert problems == []
    expected, found = on_the_wall_clock(alone_slices, base, "ts"), on_the_wall_clock(slices, 0, "ts")
    assert len(expected) > 100 and set(expected) <= set(found)
    # Perfetto drops what overlaps in JSON; here it has a track of its own.
    everything = [event for event in profile["traceEvents"] if event["ph"] == "X"]
    assert sum(row[3] is not None and row[1] > 0 for row in found) == sum(event["dur"] > 0 for event in everything)
    times = ("source_ts", "target_ts")
    assert on_the_wall_clock(flows, 0, *times) == on_the_wall_clock(alone_flows, base, *times) != []
    decoded = PerfettoTrace(folder / "merged.pftrace")
    report = json.loads(gpumemtrace("replay", folder / "run.trace", "--json"))
    assert list(decoded.processes) == [report["traces"][0]["pid"]], "one process has both"
    assert max(value for _, value in decoded.counter("GPU 0 allocated")) == report["devices"][0]["peak"]["live_bytes"]
    assert len(decoded.named("Steps", decoded.slices)) == 5


def test_both_recordings_have_one_clock(plain_run, torch_version):
    done, folder = plain_run(torch_version)
    assert done.returncode == 0, done.stderr
    decoded = PerfettoTrace(folder / "merged.pftrace")
    reported = [(notes["Addr"], time) for _, _, name, time, notes in decoded.instants
                if name == "[memory]" and notes.get("Device Type") == 1 and 0 < notes.get("Bytes", 0) < 1 << 62]
    to_unix_ns = decoded.clock[1] - decoded.clock[3]
    recorded = [(event["addr"], int(event["time_ns"]) + to_unix_ns) for event in dump(folder / "run.trace")
                if event["kind"] == "block_alloc"]
    # The profile begins later, and has all allocations from then on.
    wanted = [addr for addr, _ in reported]
    equal = [recorded[start:start + len(wanted)] for start in range(len(recorded) - len(wanted) + 1)]
    equal = [rows for rows in equal if [addr for addr, _ in rows] == wanted]
    rows = min(equal, key=lambda rows: abs(rows[0][1] - reported[0][1]))
    ours, theirs = [time for _, time in rows], [time for _, time in reported]
    # PyTorch reads the clock after gpumemtrace and before the next allocation, however long a
    # thread waits for its processor.
    assert all(one < other + MAX_DIFFERENCE_NS for one, other in zip(ours, theirs))
    assert all(other < after + MAX_DIFFERENCE_NS for other, after in zip(theirs, ours[1:]))
    # Some allocations follow so closely that a difference of the clocks would show.
    assert min(after - one for one, after in zip(ours, ours[1:])) < MAX_DIFFERENCE_NS


def test_cycles_of_a_schedule_get_files_and_the_handler_runs(run_profiled, torch_version):
    done, folder = run_profiled(torch_version, "schedule")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["handled", "2"]
    first = json.loads(gzip.decompress((folder / "first.json.gz").read_bytes()))
    assert sorted(path.name for path in folder.glob("*.pftrace")) == ["merged.2.pftrace", "merged.pftrace"]
    one, two = (query(folder / name, "select name from slice where name like 'ProfilerStep%'")[0]
                for name in ("merged.pftrace", "merged.2.pftrace"))
    assert [row["name"] for row in one] == [event["name"] for event in first["traceEvents"]
                                            if event["name"].startswith("ProfilerStep") and event["ph"] == "X"]
    assert one != two != []


def test_errors_of_the_program_pass(run_profiled, torch_version):
    done, folder = run_profiled(torch_version, "raise")
    assert done.returncode == 1 and done.stderr.rstrip().endswith("KeyError: 'of the program'")
    assert "During handling" not in done.stderr
    assert PerfettoTrace(folder / "merged.pftrace").slices


def test_program_without_recording_runs_as_before(run_profiled, torch_version):
    done, folder = run_profiled(torch_version, "plain", traced=False)
    assert done.returncode == 0, done.stderr
    assert "no merged profile was written: this process is not being recorded" in sentences(done.stderr)
    assert not (folder / "merged.pftrace").exists()
    assert json.loads((folder / "exported.json").read_text())["traceEvents"]


def test_missing_command_is_one_line(run_profiled, torch_version):
    done, folder = run_profiled(torch_version, "plain", path="/usr/bin:/bin")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("gpumemtrace: no merged profile was written: the gpumemtrace command was not found") == 1
    assert json.loads((folder / "exported.json").read_text())["traceEvents"]
