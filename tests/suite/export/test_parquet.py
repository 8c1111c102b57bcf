"""`gpumemtrace export parquet`: third-party readers open all tables, and the queries of
docs/exports/parquet.md give the numbers of the report."""

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from conftest import BUILD, COMMAND, DRIVER, REPOSITORY, environment, gpumemtrace
from page_runs import EXPANDABLE, GOLDEN, LEAKING, damage, record, record_ranks
from readers import reader_program, run_reader

PAGE = REPOSITORY / "docs" / "exports" / "parquet.md"
READER = REPOSITORY / "tests" / "suite" / "support" / "exports" / "parquet_reader.py"
TABLES = ["allocations", "categories", "events", "findings", "runs", "segments", "series", "sites", "stacks", "steps"]
INCOMPLETE = 6


def queries():
    """Returns the queries of the page by the name in their first line."""
    blocks = re.findall(r"```sql\n-- (\w+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == len(dict(blocks)), "two queries of the page have the same name"
    return dict(blocks)


@dataclass
class Export:
    """An export, and the report of the same traces."""

    folder: Path
    traces: list
    code: int = 0

    @cached_property
    def report(self):
        return json.loads(gpumemtrace("replay", *self.traces, "--json", code=self.code))

    def ask(self, wanted, opens_tables=False):
        """Returns the rows of queries, by name, over the views of the page."""
        sql = {name: text.replace("'memory/", f"'{self.folder}/") for name, text in (queries() | wanted).items()}
        asked = {"views": sql["views"], "queries": {name: sql[name] for name in wanted}, "opens_tables": opens_tables}
        done = run_reader([reader_program("python"), READER, self.folder], input=json.dumps(asked))
        return json.loads(done.stdout)

    @cached_property
    def read(self):
        return self.ask({name: text for name, text in queries().items() if name != "views"}, opens_tables=True)

    def answer(self, name):
        return self.read["answers"][name]

    def sql(self, text):
        return self.ask({"one": text})["answers"]["one"]

    def rank_of(self, entry):
        """Returns the rank of a trace of the report."""
        ranks = [trace["rank"] for trace in self.report["traces"]]
        return entry["trace"] if None in ranks or len(set(ranks)) < len(ranks) else ranks[entry["trace"]]


def export(folder, traces, *flags, code=0):
    gpumemtrace("export", "parquet", *traces, "-o", folder, *flags, code=code)
    return Export(folder, traces, code)


def all_bytes(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def golden(folder):
    return [Path(shutil.copy(GOLDEN / "cuda-train.trace", folder))]


def record_driver(folder):
    """Records a program without PyTorch."""
    driver = folder / "libcuda.so.1"
    driver.symlink_to(DRIVER)
    return [record(folder, "driver/alloc_free.py", driver, 50)]


KINDS = {
    "golden": golden,
    "leak": lambda folder: [record(folder, *LEAKING, "--steps", 60)],
    "expandable": lambda folder: [record(folder, *LEAKING, **EXPANDABLE)],
    "fragmented": lambda folder: [record(folder, "memory/fragmentation_gap.py", folder / "witness.json")],
    "phases": lambda folder: [record(folder, "training/steps.py", "phases")],
    "driver": record_driver,
    "ranks": record_ranks,
}
_made = {}


@pytest.fixture(params=KINDS)
def exported(request, tmp_path_factory):
    """An export of each kind of trace."""
    if request.param not in _made:
        folder = tmp_path_factory.mktemp(request.param)
        _made[request.param] = export(folder / "memory", KINDS[request.param](folder))
    return _made[request.param]


def devices_with_torch(export):
    return [device for device in export.report["devices"] if device["peak"]["live_bytes"] is not None]


@pytest.mark.sampled(2)
def test_readers_agree_on_every_table(exported):
    tables = exported.read["tables"]
    assert sorted(tables) == TABLES
    for name, table in tables.items():
        assert table["metadata"]["gpumemtrace.schema"] == "gpumemtrace.tables"
        assert table["metadata"]["gpumemtrace.schema_version"] == "1"
        assert table["metadata"]["gpumemtrace.table"] == name
        assert table["codecs"] in (["ZSTD"], [])
        kinds = {kind for column, kind in table["types"].items() if column not in ("run", "rank", "frames")}
        assert kinds <= {"int64", "string", "bool", "dictionary<values=string, indices=int32, ordered=0>"}, kinds
        runs = {file.split("/")[0] for file in table["files"]}
        ranks = [file.split("/")[1:] for file in table["files"]]
        assert len(runs) == 1 and runs.pop().startswith("run=")
        assert ranks == [[f"rank={rank}", "part-0.parquet"] for rank in range(len(exported.traces))]
    assert tables["events"]["rows"] == sum(sum(trace["events"].values()) for trace in exported.report["traces"])


def test_peak_equals_report(exported):
    expected = sorted((exported.rank_of(device), device["device"], device["peak"]["live_bytes"], device["peak"]["time_ns"])
                      for device in devices_with_torch(exported))
    assert [(row["rank"], row["device"], row["bytes"], row["time_ns"]) for row in exported.answer("peak")] == expected
    assert exported.answer("peak_time") == exported.answer("peak")


def test_sites_at_peak_equal_report(exported):
    expected = {}
    for peak in exported.report["peak"]:
        if peak["layer"] == "torch":
            for site in peak["sites"]:
                key = (exported.rank_of(peak), peak["device"], site["site"]["id"])
                expected[key] = (site["bytes"], site["blocks"], site["site"]["file"], site["site"]["line"])
    found = {(row["rank"], row["device"], row["site_id"]): (row["bytes"], row["blocks"], row["file"], row["line"])
             for row in exported.answer("peak_sites")}
    assert found == expected


def test_stacks_at_peak_sum_to_it(exported):
    assert sum(row["bytes"] for row in exported.answer("stacks_at_peak")) == sum(
        device["peak"]["live_bytes"] for device in devices_with_torch(exported))


def test_live_blocks_at_exit_equal_report(exported):
    expected = {(exported.rank_of(device), device["device"]): device["exit"]["live_bytes"]
                for device in devices_with_torch(exported) if device["exit"]["live_bytes"]}
    assert {(row["rank"], row["device"]): row["bytes"] for row in exported.answer("live_at_exit")} == expected


def test_events_equal_report(exported):
    counts = {}
    for trace in exported.report["traces"]:
        for kind, events in trace["events"].items():
            counts[kind] = counts.get(kind, 0) + events
    found = {row["kind"]: row["events"] for row in exported.answer("events_by_kind")}
    # The report names these by their plural.
    found |= {"marks": found.pop("mark")} if "mark" in found else {}
    assert found == {kind: events for kind, events in counts.items() if events}
    assert sum(row["blocks"] for row in exported.answer("churn")) == counts.get("block_alloc", 0)


def test_steps_equal_report(exported):
    steps = exported.report["steps"]["count"]
    for row in exported.answer("steps"):
        if row["rank"] == 0:
            assert row["steps"] == (steps or 0)
    [first, *_] = exported.sql("SELECT max(step) AS step FROM events WHERE rank = 0")
    assert first["step"] == steps


def test_reserved_and_device_peaks_equal_report(exported):
    found = {(row["rank"], row["device"]): (row["reserved_bytes"], row["device_bytes"]) for row in exported.answer("reserved_and_device")}
    for device in exported.report["devices"]:
        peak = device["peak"]
        assert found[exported.rank_of(device), device["device"]] == (peak["reserved_bytes"], peak["device_bytes"])


def test_gap_equals_report(exported):
    expected = {}
    for course in exported.report["fragmentation_over_time"]:
        largest = max(course["points"], key=lambda point: point["gap_bytes"])
        key = (exported.rank_of(course), course["device"])
        values = {"gap": largest["gap_bytes"]} | {f"gap.{cause}": size for cause, size in largest["causes"].items()}
        expected |= {(*key, name): size for name, size in values.items() if size}
    found = {(row["rank"], row["device"], row["series"]): row["bytes"] for row in exported.answer("largest_gap")}
    assert found == expected


def test_segments_equal_report(exported):
    gaps = [gap for gap in exported.report["fragmentation"] if gap["at"]["why"] == "end" and gap["pools"]]
    expected = {(exported.rank_of(gap), gap["device"]): (gap["reserved_bytes"], gap["live_bytes"]) for gap in gaps}
    answer = exported.answer("segments_at_end")
    assert {(row["rank"], row["device"]): (row["reserved_bytes"], row["live_bytes"]) for row in answer} == expected
    # The report counts neighbouring pieces of expandable segments as one.
    if not any(pool["is_expandable"] for gap in gaps for pool in gap["pools"]):
        segments = {(exported.rank_of(gap), gap["device"]): sum(pool["segments"] for pool in gap["pools"]) for gap in gaps}
        assert {(row["rank"], row["device"]): row["segments"] for row in answer} == segments


def test_rounding_equals_report(exported):
    expected = {}
    for gap in exported.report["fragmentation"]:
        if gap["at"]["why"] == "peak_reserved" and gap["requested_bytes"] is not None and gap["pools"]:
            rounding = [cause["bytes"] for cause in gap["causes"] if cause["cause"] == "rounding"]
            expected[exported.rank_of(gap), gap["device"]] = sum(rounding)
    found = {(row["rank"], row["device"]): row["bytes"] for row in exported.answer("rounding")}
    assert {key: found[key] for key in expected} == expected


def test_blocks_of_each_moment_fill_its_segments(exported):
    # The states of the analysis are the oracle of `seq`.
    moments = exported.sql("""
        WITH moments AS (SELECT rank, device, moment, time_ns, seq, sum(allocated_bytes)::BIGINT AS held FROM segments GROUP BY ALL)
        SELECT moment, held, (SELECT coalesce(sum(size_bytes), 0)::BIGINT FROM allocations a
            WHERE a.layer = 'torch' AND a.rank = m.rank AND a.device = m.device AND start_seq <= seq AND (end_seq > seq OR state = 'live')) AS live
        FROM moments m""")
    assert all(row["held"] == row["live"] for row in moments), moments
    has_segments = any(gap["pools"] for gap in exported.report["fragmentation"])
    assert ({"peak", "peak_reserved", "end"} <= {row["moment"] for row in moments}) == has_segments


def test_findings_marks_and_cards_equal_report(exported):
    report = exported.report
    expected = [(exported.rank_of(verdict), verdict["severity"], verdict["kind"], verdict["summary"]) for verdict in report["verdicts"]]
    assert [(row["rank"], row["severity"], row["kind"], row["summary"]) for row in exported.answer("findings")] == sorted(
        expected, key=lambda row: row[0])
    marks = [(exported.rank_of(mark), mark["name"], mark["time_ns"]) for mark in report.get("marks", [])]
    assert [(row["rank"], row["name"], row["time_ns"]) for row in exported.answer("marks")] == marks
    cards = [(exported.rank_of(device), device["name"], device["peak"]["live_bytes"]) for device in report["devices"]]
    assert [(row["rank"], row["card"], row["peak_live_bytes"]) for row in exported.answer("ranks")] == sorted(cards)


def test_survivors_are_the_leak(tmp_path):
    leak = export(tmp_path / "memory", [record(tmp_path, *LEAKING, "--steps", 60)])
    [expected] = leak.report["leaks"]
    [found] = leak.answer("survivors")
    assert (found["site_id"], found["line"]) == (expected["site"]["id"], expected["site"]["line"])
    assert (found["blocks"], found["bytes"]) == (expected["blocks"], expected["bytes"])


def test_same_traces_give_same_bytes(tmp_path):
    trace = record(tmp_path, *LEAKING)
    export(tmp_path / "one", [trace])
    export(tmp_path / "two", [trace])
    first = all_bytes(tmp_path / "one")
    # The tables, the summary and the lock.
    assert len(first) == len(TABLES) + 2 and first == all_bytes(tmp_path / "two")
    export(tmp_path / "one", [trace])
    assert first == all_bytes(tmp_path / "one")


def test_folder_keeps_other_runs(tmp_path):
    trace = record(tmp_path, *LEAKING)
    export(tmp_path / "memory", [trace])
    before = all_bytes(tmp_path / "memory")
    both = export(tmp_path / "memory", golden(tmp_path))
    after = all_bytes(tmp_path / "memory")
    assert len(after) == 2 * (len(TABLES) + 1) + 1 and before.items() <= after.items()
    assert len(both.sql("SELECT DISTINCT run FROM events")) == 2


@pytest.mark.slow("exports a run four times")
@pytest.mark.parametrize("flags", [("--since", "step:20", "--until", "step:30"), ("--around", "peak"), ("--since", "step:59")], ids=" ".join)
def test_window_restricts_tables(tmp_path, flags):
    trace = record(tmp_path, *LEAKING, "--steps", 60)
    whole = export(tmp_path / "whole", [trace])
    part = export(tmp_path / "part", [trace], *flags)
    [bounds] = part.sql("SELECT since_ns, until_ns, is_whole, events, min(time_ns) AS first, max(time_ns) AS last, count(*) AS rows "
                        "FROM runs, events GROUP BY ALL")
    assert not bounds["is_whole"] and bounds["rows"] == bounds["events"]
    assert bounds["since_ns"] <= bounds["first"] and bounds["last"] <= bounds["until_ns"]
    expected = whole.sql(f"SELECT seq, time_ns, kind, step FROM events WHERE seq BETWEEN (SELECT min(seq) FROM events WHERE time_ns >= {bounds['first']}) "
                         f"AND (SELECT max(seq) FROM events WHERE time_ns <= {bounds['last']}) ORDER BY seq")
    assert part.sql("SELECT seq, time_ns, kind, step FROM events ORDER BY seq") == expected
    first, last = expected[0]["seq"], expected[-1]["seq"]
    live = whole.sql(f"""SELECT start_seq, address, size_bytes, CASE WHEN end_seq <= {last} THEN end_seq END AS end_seq FROM allocations
                         WHERE start_seq <= {last} AND (end_seq >= {first} OR end_seq IS NULL) ORDER BY start_seq, address""")
    assert part.sql("SELECT start_seq, address, size_bytes, end_seq FROM allocations ORDER BY start_seq, address") == live
    ends = part.sql("SELECT device, end_bytes FROM steps WHERE layer = 'torch' ORDER BY start_ns DESC LIMIT 1")
    [held] = part.sql("SELECT sum(size_bytes)::BIGINT AS bytes FROM allocations WHERE layer = 'torch' AND state = 'live'")
    assert ends[0]["end_bytes"] == held["bytes"]
    [sites] = part.sql("SELECT sum(allocations)::BIGINT AS blocks, sum(end_bytes)::BIGINT AS bytes FROM sites WHERE layer = 'torch'")
    [blocks] = part.sql("SELECT count(*) AS blocks FROM events WHERE kind = 'block_alloc'")
    assert (sites["blocks"], sites["bytes"]) == (blocks["blocks"], held["bytes"])


def test_hostile_names_are_plain_values(tmp_path):
    names = tmp_path / "run=1;DROP TABLE"
    names.mkdir()
    trace = record(names, "stacks/hostile_names.py")
    hostile = export(tmp_path / "memory", [trace])
    functions = {frame["function"] for frame in hostile.answer("frames")}
    sites = {site["site"]["function"] for peak in hostile.report["peak"] for site in peak["sites"]}
    assert {name for name in sites if name} <= functions
    for row in hostile.sql("SELECT folded, len(frames) AS frames FROM stacks WHERE len(frames) > 0"):
        assert "\n" not in row["folded"] and len(row["folded"].split(";")) == row["frames"]


def test_incomplete_trace_is_said(tmp_path):
    damaged = export(tmp_path / "memory", [damage(record(tmp_path, *LEAKING), tmp_path)], code=INCOMPLETE)
    [run] = damaged.sql("SELECT is_complete, incomplete_json FROM runs")
    assert not run["is_complete"] and json.loads(run["incomplete_json"])


def test_failed_export_leaves_nothing(tmp_path):
    text = tmp_path / "text.trace"
    text.write_text("no trace")
    gpumemtrace("export", "parquet", text, "-o", tmp_path / "memory", code=5)
    assert not (tmp_path / "memory").exists()
    taken = tmp_path / "file"
    taken.write_text("kept")
    gpumemtrace("export", "parquet", *golden(tmp_path), "-o", taken, code=1)
    assert taken.read_text() == "kept"


def test_missing_program_says_how_to_install_it(tmp_path):
    alone = Path(shutil.copy(COMMAND, tmp_path / "gpumemtrace"))
    env = environment(tmp_path, traced=False, PATH="/usr/bin")
    done = subprocess.run([alone, "export", "parquet", *golden(tmp_path)], capture_output=True, text=True, env=env)
    assert done.returncode == 2
    assert "gpumemtrace-parquet" in done.stderr and "cargo install --path crates/export-parquet" in done.stderr
    folder = tmp_path / "bin"
    folder.mkdir()
    os.symlink(BUILD / "gpumemtrace-parquet", folder / "gpumemtrace-parquet")
    env["PATH"] = f"{folder}:/usr/bin"
    done = subprocess.run([alone, "export", "parquet", *golden(tmp_path)], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "cuda-train.parquet" / "runs").is_dir()


def test_signals_to_the_command_reach_the_program(tmp_path):
    """`gpumemtrace` becomes the program: a kill leaves no process behind."""
    alone, program = Path(shutil.copy(COMMAND, tmp_path / "gpumemtrace")), tmp_path / "gpumemtrace-parquet"
    program.write_text('#!/bin/sh\necho "$$ $*"\nexit 42\n')
    command = [alone, "export", "parquet", "run.trace", "-o", "memory"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and "gpumemtrace-parquet cannot be run: Permission denied" in done.stderr
    program.chmod(0o755)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        printed = process.stdout.read()
    assert (printed, process.returncode) == (f"{process.pid} parquet run.trace -o memory\n", 42)
