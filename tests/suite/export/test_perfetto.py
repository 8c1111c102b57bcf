"""`gpumemtrace export perfetto`, read by Perfetto's schema, its trace processor and its page."""

import json
import shutil
import subprocess

import pytest

from conftest import COMMAND, REPOSITORY, VENVS, dump, gpumemtrace
from page_runs import GOLDEN, record
from perfetto_page import open_in_perfetto
from perfetto_trace import PROBLEMS, export_perfetto, query

PACKAGE = REPOSITORY / "python"


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    """A run with steps, phases, marks and an out-of-memory error: its trace and its report."""
    if not VENVS:
        raise pytest.UsageError("GPUMEMTRACE_VENVS is not set: run scripts/test, which makes the environments")
    folder = tmp_path_factory.mktemp("training")
    trace = record(folder, "package/profiled_training.py", "alone", PYTHONPATH=PACKAGE, trace="run.rank3.trace", RANK="3", WORLD_SIZE="8")
    return trace, report_of(trace)


def report_of(*traces):
    return json.loads(gpumemtrace("replay", *traces, "--json", code=None))


def live_after_each_event(trace, start_ns):
    """Returns PyTorch's live bytes after each block event, recounted from the dump."""
    live, blocks, course = 0, {}, []
    for event in dump(trace):
        if event["kind"] == "block_alloc":
            blocks[event["addr"]] = event["size"]
            live += event["size"]
        elif event["kind"] == "block_free":
            live -= blocks.pop(event["addr"])
        else:
            continue
        course.append([int(event["time_ns"]) - start_ns, live])
    return course


def test_counters_are_exact_in_a_short_run(training, tmp_path):
    trace, report = training
    [device] = report["devices"]
    exported = export_perfetto(tmp_path, trace)
    start = report["traces"][0]["started_unix_ns"]
    start_ns = exported.clock[3]
    assert exported.clock[1] == start
    points = [[time - start, value] for time, value in exported.counter("GPU 0 allocated")]
    expected = live_after_each_event(trace, start_ns)
    # Within a microsecond, at most three values are kept; the last one always is.
    assert {time: value for time, value in expected}.items() <= {time: value for time, value in points}.items()
    for name, key in [("allocated", "live_bytes"), ("reserved", "reserved_bytes"), ("device memory", "device_bytes")]:
        values = exported.counter(f"GPU 0 {name}")
        assert max(value for _, value in values) == device["peak"][key]
    peak = max(points, key=lambda point: point[1])
    assert peak == [device["peak"]["time_ns"], device["peak"]["live_bytes"]]
    gap = report["fragmentation_over_time"][0]["points"]
    for cause, name in [("rounding", "rounding"), ("cache", "cache"), ("pinned", "pinned")]:
        expected = [[start + point["time_ns"], point["causes"].get(cause, 0)] for point in gap]
        if any(value for _, value in expected):
            assert exported.counter(f"GPU 0 unused: {name}") == expected


def test_steps_phases_marks_and_errors_are_those_of_the_report(training, tmp_path):
    trace, report = training
    exported = export_perfetto(tmp_path, trace)
    start = report["traces"][0]["started_unix_ns"]
    [pid] = exported.processes
    assert pid == report["traces"][0]["pid"] and exported.processes[pid].startswith("rank 3: ")
    steps = exported.named("Steps", exported.slices)
    assert [name for _, _, name, _, _ in steps] == [f"step {number}" for number in range(report["steps"]["count"] + 1)]
    assert all(before[4] == after[3] for before, after in zip(steps, steps[1:])), "steps leave no gap"
    phases = exported.named("Phases", exported.slices)
    assert [name for _, _, name, _, _ in phases] == ["forward"] * 5
    marks = [[name, time - start] for _, _, name, time, _ in exported.named("Marks", exported.instants)]
    assert marks == [[mark["name"], mark["time_ns"]] for mark in report["marks"]]
    [error] = exported.named("Out-of-memory errors", exported.instants)
    [expected] = report["oom"]
    assert error[2] == "Out of memory on GPU 0: 1.00 TiB" and error[3] - start == expected["time_ns"]
    assert error[4]["requested_bytes"] == 1 << 40 and error[4]["why"] == expected["why"]


def test_heap_profiles_are_the_live_blocks(training, tmp_path):
    trace, report = training
    exported = export_perfetto(tmp_path, trace)
    start = report["traces"][0]["started_unix_ns"]
    assert {heap["heap"] for heap in exported.heaps} == {"gpu0 tensors"}
    by_time = {heap["time"] - start: heap for heap in exported.heaps}
    [peak] = report["peak"]
    [device] = report["devices"]
    assert sum(bytes for _, bytes, _ in by_time[device["peak"]["time_ns"]]["stacks"]) == peak["live_bytes"]
    stacks = by_time[device["peak"]["time_ns"]]["stacks"]
    for row in peak["sites"]:
        function, line = row["site"]["function"], row["site"]["line"]
        below = [bytes for frames, bytes, _ in stacks
                 if any(frame.split(" (")[0] == function and frame.endswith(f":{line})") for frame in frames)]
        # Other sites may lie below this line, too.
        assert function is None or sum(below) >= row["bytes"], row
    last = max(by_time)
    assert sum(bytes for _, bytes, _ in by_time[last]["stacks"]) == device["end"]["live_bytes"]
    allocated = sum(event["size"] for event in dump(trace) if event["kind"] == "block_alloc"
                    and int(event["time_ns"]) - exported.clock[3] <= last)
    assert by_time[last]["allocated"] == allocated
    for mark in report["marks"]:
        assert mark["time_ns"] in by_time


def test_trace_processor_reads_everything(training, tmp_path):
    trace, report = training
    exported = export_perfetto(tmp_path, trace)
    problems, counters, slices, heaps, processes = query(
        exported.path,
        PROBLEMS,
        "select t.name name, count(*) count, max(c.value) most from counter c join track t on c.track_id = t.id group by 1",
        "select s.name name, s.ts ts, s.dur dur from slice s join track t on s.track_id = t.id where t.name = 'Steps' order by ts",
        "select ts, heap_name, sum(size) size, sum(count) count from heap_profile_allocation group by 1, 2 order by 1",
        "select pid, name from process where pid > 0",
    )
    assert problems == []
    assert {row["name"]: (row["count"], row["most"]) for row in counters} == {
        name: (len(points), max(value for _, value in points)) for (_, name), points in exported.counters.items()}
    assert [[row["name"], int(row["ts"]), row["dur"]] for row in slices] == [
        [name, begin, end - begin] for _, _, name, begin, end in exported.named("Steps", exported.slices)]
    # Its rows are changes since the dump before.
    live, expected = {}, {heap["time"]: sum(bytes for _, bytes, _ in heap["stacks"]) for heap in exported.heaps}
    for row in heaps:
        live[int(row["ts"])] = row["size"] + (live[max(live)] if live else 0)
    assert live.items() <= expected.items() and max(live.values()) == report["devices"][0]["peak"]["live_bytes"]
    assert processes == [{"pid": pid, "name": name} for pid, name in exported.processes.items()]


def test_window_limits_everything(training, tmp_path):
    trace, report = training
    whole = export_perfetto(tmp_path, trace)
    exported = export_perfetto(tmp_path, trace, "--since", "step:2", "--until", "step:4", name="window.pftrace")
    steps = {name: (begin, end) for _, _, name, begin, end in whole.named("Steps", whole.slices)}
    begin, end = steps["step 2"][0], steps["step 3"][1]
    times = [time for points in exported.counters.values() for time, _ in points]
    times += [time for *_, first, last in exported.slices for time in (first, last)]
    times += [time for _, _, _, time, _ in exported.instants] + [heap["time"] for heap in exported.heaps]
    assert begin <= min(times) and max(times) <= end
    assert [name for _, _, name, _, _ in exported.named("Steps", exported.slices)] == ["step 2", "step 3"]
    inside = [value for time, value in whole.counter("GPU 0 allocated") if begin <= time < end]
    assert max(value for _, value in exported.counter("GPU 0 allocated")) == max(inside)
    peak = max(exported.heaps, key=lambda heap: sum(bytes for _, bytes, _ in heap["stacks"]))
    assert sum(bytes for _, bytes, _ in peak["stacks"]) == max(inside)


def test_ranks_are_processes_and_equal_process_ids_stay_apart(training, tmp_path):
    trace, report = training
    other = tmp_path / "copy.trace"
    shutil.copy(trace, other)
    exported = export_perfetto(tmp_path, trace, other)
    assert sorted(exported.processes) == [report["traces"][0]["pid"], (1 << 30) + 1]
    [one, two] = [points for (_, name), points in exported.counters.items() if name == "GPU 0 allocated"]
    assert one == two
    [rows] = query(exported.path, "select pid, count(*) tracks from process_counter_track join process using (upid) group by 1")
    assert len(rows) == 2 and rows[0]["tracks"] == rows[1]["tracks"]


@pytest.mark.parametrize("name", ["cuda-train.trace", "metal-retained.trace"])
def test_traces_without_pytorch_tracker(name, tmp_path):
    report = report_of(GOLDEN / name)
    exported = export_perfetto(tmp_path, GOLDEN / name, code=None)
    for device in report["devices"]:
        peaks = [device["peak"][key] for key in ("live_bytes", "device_bytes") if device["peak"][key] is not None]
        assert max(value for points in exported.counters.values() for _, value in points) == max(peaks)
    assert query(exported.path, PROBLEMS) == [[]]


def test_page_shows_every_track(training, tmp_path):
    trace, _ = training
    exported = export_perfetto(tmp_path, trace)
    tracks = {name for _, name in exported.counters} | {name for _, name, *_ in [*exported.slices, *exported.instants]}
    assert {"GPU 0 allocated", "Steps", "Phases", "Marks"} <= tracks
    flame_graph = {"Heap Profile", "Unreleased Size"}
    shown = set(open_in_perfetto(exported.path, tracks | flame_graph))
    assert tracks <= shown
    assert flame_graph <= shown, "the flame graph of the first heap is open"


def test_equal_traces_give_equal_files(training, tmp_path):
    trace, _ = training
    files = []
    for name in ("one", "two"):
        gpumemtrace("export", "perfetto", trace, "--output", tmp_path / name)
        files.append((tmp_path / name).read_bytes())
    assert files[0] == files[1]


@pytest.mark.parametrize("content, why", [
    ("", "EOF while parsing"),
    ("{}", "it has no traceEvents"),
    ('{"traceEvents": [{"ph": "X", "ts": 1', "EOF while parsing"),
    ('{"traceEvents": 5}', "a list of events"),
    ('[{"ph": "X", "ts": 1, "args": {"a": ' + "[" * 1000, "recursion limit exceeded"),
], ids=["empty", "no events", "cut", "no list", "deep"])
def test_profile_that_is_none_is_one_sentence(training, tmp_path, content, why):
    trace, _ = training
    (tmp_path / "profile.json").write_text(content)
    done = subprocess.run([COMMAND, "export", "perfetto", trace, "--torch-profile", tmp_path / "profile.json", "-o", tmp_path / "out"],
                          capture_output=True, text=True)
    assert done.returncode == 5 and why in done.stderr and not (tmp_path / "out").exists()
    assert "is not a trace of torch.profiler" in done.stderr
