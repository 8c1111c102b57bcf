"""The format `stormlog`, loaded and analysed by Stormlog 0.4.3. The oracle of its numbers is
`replay`.
"""

import json
import math
from pathlib import Path

import pytest

from conftest import VENVS
from exported_runs import driver_run, newest, ranks_run, stepped_run  # noqa: F401 (fixtures)
from readers import read_with_python, reader_program, run_reader

LOAD = """
import json, sys
from stormlog.phases import PhaseReplayIndex
from stormlog.telemetry import load_telemetry_sessions, telemetry_event_to_dict
sessions = load_telemetry_sessions(sys.argv[1], permissive_legacy=False)
print(json.dumps([{
    "id": one.summary.session_id,
    "status": one.summary.status,
    "events": [telemetry_event_to_dict(event) for event in one.events],
    "spans": [[span.path, span.start_ns, span.end_ns] for span in
              PhaseReplayIndex.from_events(one.events).spans_for(session_id=one.summary.session_id)],
} for one in sessions]))
"""


def load(path):
    """Returns Stormlog's sessions; its loader validates every event."""
    return read_with_python(LOAD, path)


def export(run, *options):
    return run.export("stormlog", *options, name="exported.jsonl")


def query(path, metric, *options):
    rows = run_reader([reader_program("stormlog"), "query", "summary", "--json", "--metric", metric, *options, path])
    return json.loads(rows.stdout)


def test_samples_have_the_peaks_of_replay(stepped_run, torch_version):
    run = stepped_run(torch_version)
    report, path = run.report(), export(run)
    [session], [device], [trace] = load(path), report["devices"], report["traces"]
    samples = [event for event in session["events"] if event["event_type"] == "sample"]
    peaks = {"allocator_allocated": "live", "allocator_reserved": "reserved", "device_used": "device"}
    for key, series in peaks.items():
        expected = device["peak"][f"{series}_bytes"]
        assert max(event[f"{key}_bytes"] for event in samples) == expected
        [found] = query(path, f"peak_{key}_bytes")
        assert found["value"] == expected, "Stormlog's own query"
    changes = sum(event["allocator_change_bytes"] for event in samples[1:])
    assert changes == samples[-1]["allocator_allocated_bytes"] - samples[0]["allocator_allocated_bytes"]
    assert {event["device_total_bytes"] for event in samples} == {device["total_bytes"]}
    for key in "allocator_active_bytes", "allocator_inactive_bytes", "device_free_bytes":
        assert {event[key] for event in samples} == {None}, "not recorded, so not 0"
    assert (session["events"][0]["pid"], session["events"][0]["host"]) == (trace["pid"], trace["host"])
    assert len(samples) <= 4096


def test_lifecycle_phases_and_errors_are_events(stepped_run, newest):
    run = stepped_run(newest)
    report = run.report()
    [session], [trace] = load(export(run)), report["traces"]
    assert session["status"] == "completed"
    by_type = {}
    for event in session["events"]:
        by_type.setdefault(event["event_type"], []).append(event)
    [start], [stop], [error] = by_type["start"], by_type["stop"], by_type["error"]
    assert start["context"] == " ".join(trace["command"])
    assert stop["timestamp_ns"] == trace["started_unix_ns"] + trace["duration_ns"]
    [oom] = report["oom"]
    assert error["metadata"]["oom_reason"] == oom["why"]
    assert error["metadata"]["gpumemtrace"]["live_bytes"] == oom["live_bytes"]
    assert error["timestamp_ns"] == trace["started_unix_ns"] + oom["time_ns"]
    [phase] = report["phases"]
    assert {tuple(path) for path, *_ in session["spans"]} == {(phase["name"],)}
    assert len(session["spans"]) == phase["count"] == 24
    # The first phase begins before the first event of the GPU's memory, and is cut there.
    assert math.isclose(sum(end - begin for _, begin, end in session["spans"]), phase["time_ns"], rel_tol=0.05)


@pytest.mark.slow("the command imports PyTorch without precompiled modules")
def test_stormlog_analyses_all_ranks(ranks_run, newest, tmp_path):
    run = ranks_run(newest)
    path, report = export(run), run.report()
    [session] = load(path)
    assert {(event["rank"], event["world_size"]) for event in session["events"]} == {(0, 2), (1, 2)}
    rows = query(path, "peak_allocator_allocated_bytes", "--group-by", "session-rank")
    assert {row["rank"]: row["value"] for row in rows} == {
        rank: device["peak"]["live_bytes"] for rank, device in enumerate(report["devices"])}
    # The command needs an importable PyTorch; any does.
    packages = next(Path(VENVS[newest]).glob("lib/python3*/site-packages"))
    script = "import runpy, sys; sys.path.append(sys.argv.pop(1)); sys.argv[0] = 'gpumemprof'; " \
             "from stormlog.cli import main; sys.exit(main())"
    result = tmp_path / "analysis.json"
    run_reader([reader_program("python"), "-c", script, packages, "analyze", path, "--output", result])
    cross = json.loads(result.read_text())["cross_rank_analysis"]
    assert cross["participating_ranks"] == [0, 1] and not cross["missing_ranks"]


def test_window_has_the_events_inside(stepped_run, newest):
    run = stepped_run(newest)
    [session], [trace] = load(export(run, "--since", "step:5", "--until", "step:9")), run.report()["traces"]
    events = session["events"]
    assert {event["event_type"] for event in events} == {"sample", "phase_enter", "phase_exit"}
    assert session["status"] == "incomplete", "neither begin nor end of the program"
    steps = {event["metadata"]["gpumemtrace"]["step"] for event in events if event["event_type"] == "sample"}
    # The window begins before the first event of step 5.
    assert steps >= {5, 6, 7, 8} and steps <= {4, 5, 6, 7, 8}
    assert len(session["spans"]) in (4, 5)
    assert trace["started_unix_ns"] < events[0]["timestamp_ns"] < events[-1]["timestamp_ns"]


def test_counters_of_pytorch_are_null_without_it(driver_run):
    [session] = load(export(driver_run))
    for event in session["events"]:
        assert event["allocator_allocated_bytes"] is event["allocator_reserved_bytes"] is None
        assert not event["metadata"]["memory_capabilities"]["supports_allocator_allocated"]
    assert max(event["device_used_bytes"] for event in session["events"]) == \
        driver_run.report()["devices"][0]["peak"]["device_bytes"]
