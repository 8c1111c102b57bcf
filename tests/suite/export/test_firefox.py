"""Profiles for the Firefox Profiler, as Mozilla's profiler-cli loads them."""

import json
from collections import Counter

import pytest

from profiler_cli import loaded_profile
from stack_exports import Recount, deepest_user_lines, peak_lines
from stack_exports import stack_run  # noqa: F401 (fixture)

#: Columns of the tables in version 62 of the format, src/types/profile.ts of the viewer.
COLUMNS = {
    "stackTable": {"frame", "prefix"},
    "frameTable": {"address", "inlineDepth", "category", "subcategory", "func", "nativeSymbol", "innerWindowID", "line", "column"},
    "funcTable": {"name", "isJS", "relevantForJS", "resource", "source", "lineNumber", "columnNumber"},
    "resourceTable": {"lib", "name", "host", "type"},
    "nativeSymbols": {"libIndex", "address", "name", "functionSize"},
    "sources": {"id", "filename", "startLine", "startColumn", "sourceMapURL"},
}
THREAD_COLUMNS = {
    "nativeAllocations": {"time", "weight", "stack", "memoryAddress", "threadId"},
    "markers": {"data", "name", "startTime", "endTime", "phase", "category"},
    "samples": {"stack", "time"},
}


def read(path):
    return json.loads(path.read_text())


def rows(table):
    """Returns the rows of a table as dicts."""
    columns = {name: column for name, column in table.items() if isinstance(column, list)}
    assert all(len(column) == table["length"] for column in columns.values())
    return [dict(zip(columns, row)) for row in zip(*columns.values())]


def stack_places(profile):
    """Returns the file and line of each frame of each stack, outermost first."""
    shared = profile["shared"]
    stacks = []
    for frame, prefix in zip(shared["stackTable"]["frame"], shared["stackTable"]["prefix"]):
        source = shared["funcTable"]["source"][shared["frameTable"]["func"][frame]]
        file = None if source is None else shared["stringArray"][shared["sources"]["filename"][source]]
        assert prefix is None or prefix < len(stacks)
        stacks.append((stacks[prefix] if prefix is not None else []) + [(file, shared["frameTable"]["line"][frame])])
    return stacks


def replayed(profile, thread=0):
    """Returns live bytes at the end and at the peak, and the blocks of the peak; frees must match."""
    live, total, peak = {}, 0, 0
    at_peak = {}
    for row in rows(profile["threads"][thread]["nativeAllocations"]):
        total += row["weight"]
        if row["weight"] >= 0:
            assert row["memoryAddress"] not in live
            live[row["memoryAddress"]] = row
            if total > peak:
                peak, at_peak = total, dict(live)
        else:
            assert live.pop(row["memoryAddress"])["weight"] == -row["weight"]
    return total, peak, at_peak.values()


@pytest.mark.parametrize("name", ["leak", "oom", "hostile", "ranks"])
def test_allocations_and_frees_lead_to_the_report(stack_run, name):
    run = stack_run(name)
    profile = read(run.export("firefox"))
    assert len(profile["threads"]) == len(run.totals)
    for thread, totals in enumerate(run.totals):
        end, peak, _ = replayed(profile, thread)
        assert (end, peak) == (totals["end"][0], totals["peak"][0])
        allocated = [row["weight"] for row in rows(profile["threads"][thread]["nativeAllocations"]) if row["weight"] >= 0]
        assert (sum(allocated), len(allocated)) == totals["allocated"]


def test_lines_hold_at_the_peak_what_the_report_says(stack_run):
    run = stack_run("leak")
    profile = read(run.export("firefox"))
    places = stack_places(profile)
    _, _, at_peak = replayed(profile)
    assert deepest_user_lines((places[row["stack"]], row["weight"]) for row in at_peak) == peak_lines(run.report)


def test_windows_hold_what_a_recount_of_the_dump_holds(stack_run):
    run = stack_run("leak")
    events = Recount(run.traces[0], run.report)
    begin_ns, end_ns = events.time_at(0.4), events.time_at(0.8)
    expected = events.window(begin_ns, end_ns)
    profile = read(run.export("firefox", "--since", f"{begin_ns}ns", "--until", f"{end_ns}ns"))
    end, peak, _ = replayed(profile)
    assert (end, peak) == (expected["end"], expected["peak"])
    times = [row["time"] * 1e6 for row in rows(profile["threads"][0]["nativeAllocations"])]
    assert times == sorted(times) and begin_ns < times[0] and times[-1] <= end_ns + 1


@pytest.mark.parametrize("name", ["leak", "hostile", "ranks"])
def test_tables_have_the_columns_of_the_format(stack_run, name):
    profile = read(stack_run(name).export("firefox"))
    assert profile["meta"]["preprocessedProfileVersion"] == 62
    assert set(profile["shared"]) == {*COLUMNS, "stringArray"}
    tables = [(profile["shared"][table], columns) for table, columns in COLUMNS.items()]
    tables += [(thread[table], columns) for thread in profile["threads"] for table, columns in THREAD_COLUMNS.items()]
    for table, columns in tables:
        assert {name for name, column in table.items() if isinstance(column, list)} == columns
        rows(table)
    schemas = {schema["name"]: {field["key"] for field in schema["fields"]} for schema in profile["meta"]["markerSchema"]}
    for thread in profile["threads"]:
        for marker in rows(thread["markers"]):
            assert set(marker["data"]) == {"type"} | schemas[marker["data"]["type"]]


@pytest.mark.parametrize("name", ["leak", "hostile", "ranks"])
def test_profiler_sums_up_what_the_report_says(stack_run, name, tmp_path):
    run = stack_run(name)
    with loaded_profile(run.export("firefox"), tmp_path) as profiler:
        for thread, totals in enumerate(run.totals):
            assert profiler.total("native-allocations", f"t-{thread}") == totals["allocated"][0]
            assert profiler.total("native-retained-allocations", f"t-{thread}") == totals["end"][0]
        if name == "leak":
            (leak,) = run.report["leaks"]
            functions = {function: own for function, _, own in profiler.bytes_of_functions("native-retained-allocations")}
            assert functions[leak["site"]["function"].split(".")[-1]] >= leak["bytes"]


@pytest.mark.parametrize("name", ["phases", "oom", "hostile"])
def test_profiler_shows_the_markers_of_the_run(stack_run, name, tmp_path):
    run = stack_run(name)
    with loaded_profile(run.export("firefox"), tmp_path) as profiler:
        markers = Counter({row["markerName"]: row["count"] for row in profiler.query("thread", "markers")["byType"]})
    report = run.report
    assert markers["Out of memory"] == len(report["oom"])
    assert markers["Step"] == (report["steps"]["count"] if report["steps"]["source"] else 0)
    if name == "phases":
        assert markers["Phase"] > 0
    if name == "hostile":
        assert markers["Mark"] == 12 and markers["Phase"] == 12 * 12


def test_counters_reach_the_peaks_of_the_report(stack_run):
    run = stack_run("leak")
    profile = read(run.export("firefox"))
    device = run.report["devices"][0]
    most = {}
    for counter in profile["counters"]:
        total, most[counter["name"]] = 0, 0
        for change in counter["samples"]["count"]:
            total += change
            most[counter["name"]] = max(most[counter["name"]], total)
        assert counter["samples"]["time"] == sorted(counter["samples"]["time"])
    assert most == {f"GPU 0 {name}": device["peak"][f"{name}_bytes"] for name in ["live", "reserved", "device"]}


def test_equal_traces_give_equal_files(stack_run):
    run = stack_run("hostile")
    first = run.export("firefox").read_bytes()
    assert run.export("firefox").read_bytes() == first
