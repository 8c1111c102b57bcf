"""Answers of gpumemtrace.sql about runs that are named, truncated, failed, or snapshots."""

import json
import shutil
import sys
from datetime import datetime, timezone

import pytest

from conftest import gpumemtrace
from sql_archives import engines, exported  # noqa: F401 (fixtures)
from sql_archives import ENGINES, PACKAGE, set_columns
from page_runs import GOLDEN
from readers import reader_program, run_reader

sys.path.insert(0, str(PACKAGE))

from gpumemtrace.sql._archive import TABLES  # noqa: E402

MIB = 1 << 20
DAY_NS = 86_400 * 10**9
STARTED = 20_000 * DAY_NS
#: A trace that ended normally. Columns that are not here are null.
NORMAL = {"trace_id": "1", "pid": 1, "command_json": '["python","train.py"]', "started_unix_ns": STARTED, "is_whole": True,
          "ending": "exit", "exit_code": 0, "is_complete": True, "incomplete_json": "[]", "peak_live_bytes": 100 * MIB, "ooms": 0}
WRITE = """
import json, pathlib, sys, pyarrow, pyarrow.parquet
types = {"BIGINT": pyarrow.int64(), "VARCHAR": pyarrow.string(), "BOOLEAN": pyarrow.bool_()}
for path, columns, rows in json.load(sys.stdin):
    schema = pyarrow.schema([(name, types[type]) for name, type in columns.items()])
    pathlib.Path(path).parent.mkdir(parents=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema), path)
"""


def write_archive(folder, runs, **others):
    """Writes an archive. `runs` has by run and rank the columns that differ from `NORMAL`.

    `others` has the rows of other tables, likewise.
    """
    tables = {"runs": {place: [NORMAL | columns] for place, columns in runs.items()}, **others}
    files = [(f"{folder}/{table}/run={run}/rank={rank}/part-0.parquet", columns, tables.get(table, {}).get((run, rank), []))
             for table, columns in TABLES.items() for run, rank in runs]
    run_reader([reader_program("python"), "-c", WRITE], input=json.dumps(files))
    return folder


@pytest.fixture
def ask(engines):
    """Returns the rows that all engines give."""
    def rows(archive, name, **parameters):
        first, *others = [engines.rows(archive, name, engine, **parameters) for engine in ENGINES]
        assert all(other == first for other in others)
        return first
    return rows


def test_months_are_those_of_starts(ask, tmp_path):
    days = [(1970, 1, 1), (1999, 12, 31), (2000, 2, 29), (2000, 3, 1), (2024, 2, 29), (2100, 2, 28), (2100, 3, 1), (2262, 4, 9)]
    days += [(year, month, 1) for year in (2026, 2027, 2028) for month in range(1, 13)]
    moments = []
    for day in days:
        midnight = int(datetime(*day, tzinfo=timezone.utc).timestamp()) * 10**9
        # Of two ranks, the second starts up to a day later, maybe in the next month.
        moments += [(day, midnight), (day, midnight + DAY_NS - 1)]
    runs, expected = {}, {}
    for number, (day, unix_ns) in enumerate(moments):
        for rank in (0, 1):
            runs[f"nightly-{number}", rank] = {"started_unix_ns": unix_ns + rank * (DAY_NS - 1)}
        month = f"{day[0]}-{day[1]:02}"
        expected[month] = expected.get(month, 0) + 2
    runs["20261123T154700Z-node7-1", 0] = {"started_unix_ns": None}
    used = {place: [{"device": 0, "category": "parameters", "bytes": MIB, "blocks": 1}] for place in runs}
    rows = ask(write_archive(tmp_path / "archive", runs, categories=used), "category_by_month")
    assert {row["month"]: row["gpus"] for row in rows} == expected
    assert all((row["bytes"], row["share"]) == (row["gpus"] * MIB, 1) for row in rows)


#: Runs that end before they reach their peak, or whose peak is unknown.
INCOMPARABLE = {
    "truncated": {"is_complete": False}, "window": {"is_whole": False}, "killed": {"ending": "killed", "exit_code": None},
    "crashed": {"ending": "crashed", "exit_code": None}, "failed": {"exit_code": 1}, "running": {"ending": "running", "exit_code": None},
    "unknown": {"peak_live_bytes": None},
}


def lines_of(*sizes):
    """Returns rows of `sites`, one for each line."""
    return [{"site": number, "site_id": str(number), "file": "/work/train.py", "line": 10 + number, "function": "f", "is_backward": False,
             "layer": "torch", "device": 0, "allocations": 1, "frees": 0, "peak_blocks": 1, "peak_bytes": size, "end_blocks": 1,
             "end_bytes": size} for number, size in enumerate(sizes)]


def block(start_step, end_step=None, site=0, state=None):
    """Returns a row of `allocations`, of a line of `lines_of`. Blocks without `end_step` are live."""
    return {"layer": "torch", "device": 0, "size_bytes": MIB, "site": site, "start_step": start_step, "end_step": end_step,
            "state": state or ("live" if end_step is None else "freed")}


def compared_archive(folder, others):
    """Returns an archive of two commits that compare, and a small run of each of `others`."""
    runs = {("old", 0): {"git_commit": "1f0c2d9" + 33 * "a", "exit_code": None}, ("new", 0): {
        "git_commit": "1f0c2e0" + 33 * "b", "started_unix_ns": STARTED + 1000, "peak_live_bytes": 160 * MIB}}
    sites = {("old", 0): lines_of(100 * MIB), ("new", 0): lines_of(160 * MIB)}
    for number, (name, columns) in enumerate(others.items()):
        for rank in (0, 1):
            runs[name, rank] = {"git_commit": f"{name}0", "started_unix_ns": STARTED + number + 1, "peak_live_bytes": MIB}
            sites[name, rank] = lines_of(MIB)
            runs[name, rank] |= columns
    return write_archive(folder, runs, sites=sites)


def test_incomplete_and_failed_runs_are_no_baseline(ask, engines, tmp_path):
    archive = compared_archive(tmp_path / "archive", INCOMPARABLE)
    [regression] = ask(archive, "regressions")
    assert (regression["before_commit"][:7], regression["git_commit"][:7]) == ("1f0c2d9", "1f0c2e0")
    assert (regression["before_bytes"], regression["bytes"], regression["function_grown_bytes"]) == (100 * MIB, 160 * MIB, 60 * MIB)
    [grown] = ask(archive, "grown_lines")
    assert (grown["before_commit"][:7], grown["after_commit"][:7], grown["grown_bytes"]) == ("1f0c2d9", "1f0c2e0", 60 * MIB)
    for name in INCOMPARABLE:
        for engine in ENGINES if name == "truncated" else ENGINES[:1]:
            answer = engines.ask(archive, "grown_lines", engine, before=name)
            assert answer == {"code": 2, "error": f"commit {name}0 has no run to compare: grown_lines needs complete runs that exited "
                                                  "normally, with a known peak and a command like '%'"}


def test_truncated_trace_is_no_baseline(ask, exported, tmp_path):
    # The same training, truncated at the first commit and whole at the second.
    whole = exported.runs[1].traces[0]
    archive = tmp_path / "archive"
    for name, size, code in [("a", whole.stat().st_size // 2, 6), ("b", None, 0)]:
        (tmp_path / name).mkdir()
        trace = tmp_path / name / "run.trace"
        trace.write_bytes(whole.read_bytes()[:size])
        gpumemtrace("export", "parquet", trace, "--run-name", name, "-o", archive, code=code)
        [place] = [path.relative_to(archive / "runs") for path in (archive / "runs" / f"run={name}").iterdir()]
        set_columns(archive, {str(place): {"runs": {"git_commit": name}}})
    assert {row["git_commit"] for row in ask(archive, "peak_over_time")} == {"a", "b"}
    assert ask(archive, "regressions") == ask(archive, "grown_lines") == []


def test_beginning_of_a_commit_is_enough(ask, engines, tmp_path):
    archive = compared_archive(tmp_path / "archive", {"v1": {}, "v10": {}})
    [grown] = ask(archive, "grown_lines", before="1f0c2d9", after="1f0c2e")
    assert grown["before_commit"] == "1f0c2d9" + 33 * "a" and grown["grown_bytes"] == 60 * MIB
    [grown] = ask(archive, "grown_lines", before="v10", after="1f0c2e")
    assert grown["before_commit"] == "v10"
    for engine in ENGINES:
        for given, error in [
            ({"before": "1f0c2"}, f"commit '1f0c2' is ambiguous: it may be 1f0c2d9{33 * 'a'}, 1f0c2e0{33 * 'b'}"),
            ({"before": "v1"}, "commit 'v1' is ambiguous: it may be v10, v100"),
            ({"after": "e0"}, f"no run in {archive} has a commit that begins with 'e0'"),
            ({"before": "%"}, f"no run in {archive} has a commit that begins with '%'"),
            ({"before": "v10", "command": "x"}, "commit v10 has no run to compare: grown_lines needs complete runs that exited "
                                                "normally, with a known peak and a command like 'x'"),
        ]:
            assert engines.ask(archive, "grown_lines", engine, **given) == {"error": error, "code": 2}


#: Traces with the cause that `failed_runs` gives to their run.
OOM = {"ooms": 1}
CAUSES = [
    ("out_of_memory", OOM | {"exit_code": 1}),
    ("out_of_memory", OOM | {"ending": "killed", "exit_code": None}),
    ("out_of_memory", OOM | {"ending": "crashed", "exit_code": None}),
    ("out_of_memory_unknown_end", OOM | {"exit_code": None}),
    ("out_of_memory_unknown_end", OOM | {"ending": "running", "exit_code": None}),
    ("out_of_memory_unknown_end", OOM | {"ending": "running", "exit_code": None, "trace_id": None, "pid": None}),
    ("crashed", {"ending": "crashed", "exit_code": None}),
    ("error_exit", {"exit_code": 1}),
    ("killed", {"ending": "killed", "exit_code": None}),
    ("unfinished", {"ending": "running", "exit_code": None}),
    ("out_of_memory_caught", OOM),
    (None, {}),
    (None, {"exit_code": None}),
]


def test_failed_runs_have_the_cause_of_their_exit(ask, tmp_path):
    runs, expected = {}, {}
    for number, (cause, columns) in enumerate(CAUSES):
        # The first rank ended normally.
        runs[f"run{number}", 0], runs[f"run{number}", 1] = {}, columns
        expected[cause] = expected.get(cause, 0) + 1
    runs["snapshot", 0] = {"ending": "running", "exit_code": None, "trace_id": None, "pid": None}
    rows = ask(write_archive(tmp_path / "archive", runs), "failed_runs")
    del expected[None]
    assert {row["cause"]: row["runs"] for row in rows} == expected
    assert all(row["share"] == row["runs"] / len(CAUSES) for row in rows)


def test_first_cause_of_a_run_is_the_one_of_its_ranks(ask, tmp_path):
    order = [cause for number, (cause, _) in enumerate(CAUSES) if cause and cause not in [one for one, _ in CAUSES[:number]]]
    causes = {cause: columns for cause, columns in reversed(CAUSES) if cause}
    for number, cause in enumerate(order):
        runs = {("job", rank): causes[later] for rank, later in enumerate(order[number:])}
        [row] = ask(write_archive(tmp_path / cause, runs), "failed_runs")
        assert row["cause"] == cause


def test_lines_of_failed_processes_are_not_called_never_freed(ask, tmp_path):
    sites = {(name, 0): lines_of(MIB) for name in ("normal", "failed")}
    blocks = {(name, 0): [block(1)] for name in ("normal", "failed")}
    runs = {("normal", 0): {"steps": 5}, ("failed", 0): {"steps": 5, "exit_code": 1}}
    [row] = ask(write_archive(tmp_path / "archive", runs, sites=sites, allocations=blocks), "never_freed")
    assert (row["runs"], row["bytes"]) == (1, MIB)


def test_snapshots_are_no_unfinished_runs(ask, tmp_path):
    archive = tmp_path / "archive"
    gpumemtrace("export", "parquet", GOLDEN / "snapshots" / "torch-2.15.0-pending-expandable.pickle", "--run-name", "snapshot", "-o", archive)
    assert ask(archive, "failed_runs") == []
    assert {(row["run"], row["reason"]) for row in ask(archive, "incomplete_runs") if row["reason"] != "events_missing"} == {
        ("snapshot", "snapshot")}


def test_trace_without_a_rank_hides_no_missing_rank(ask, tmp_path):
    # A launcher has no rank, so its folder has the next free number.
    job = {"world_size": 4}
    runs = {("part", rank): job | {"reported_rank": rank} for rank in (0, 1, 2)} | {("part", 3): {}}
    runs |= {("whole", rank): job | {"reported_rank": rank} for rank in range(4)} | {("whole", 4): {}, ("alone", 0): {}}
    [row] = ask(write_archive(tmp_path / "archive", runs), "incomplete_runs")
    assert (row["run"], row["rank"], row["reason"], row["missing_ranks"]) == ("part", None, "ranks_missing", 1)


def moment(step, time_ns, seq=5):
    """Returns a row of `segments` at an out-of-memory error."""
    return {"moment": "oom", "time_ns": time_ns, "seq": seq, "step": step, "device": 0, "address": 0, "size_bytes": 8 * MIB,
            "allocated_bytes": 6 * MIB, "blocks": 3, "is_expandable": False}


def test_first_rank_out_of_memory_is_unknown_without_its_time(ask, tmp_path):
    failed = {"ooms": 1, "card": "A GPU", "git_commit": "c"}
    runs, segments = {("known", 0): failed, ("known", 1): failed, ("known", 2): {"card": "A GPU"}}, {}
    segments["known", 0], segments["known", 1] = [moment(7, 50)], [moment(6, 60)]
    # A rank fails while its GPU has no segment.
    runs |= {("unknown", 0): failed, ("unknown", 1): failed | {"ooms": 2}}
    segments["unknown", 1] = [moment(2, 20), moment(3, 30)]
    # The rank's first error may be the one without a moment.
    runs |= {("repeated", 0): failed | {"ooms": 2}}
    segments["repeated", 0] = [moment(4, 40)]
    # The export has the first 15 errors of a GPU and the last.
    runs |= {("many", 0): failed | {"ooms": 100}}
    segments["many", 0] = [moment(step, step, step) for step in [*range(1, 16), 99]]
    rows = ask(write_archive(tmp_path / "archive", runs, segments=segments), "first_rank_out_of_memory")
    columns = ("git_commit", "failed_ranks", "ranks", "card", "first_rank", "step", "time_ns", "reserved_bytes", "allocated_bytes")
    assert {row["run"]: tuple(row[name] for name in columns) for row in rows} == {
        "known": ("c", 2, 3, "A GPU", 1, 6, 60, 8 * MIB, 6 * MIB),
        "many": ("c", 1, 1, "A GPU", 0, 1, 1, 8 * MIB, 6 * MIB),
        "repeated": ("c", 1, 1, "A GPU", 0, None, None, None, None),
        "unknown": ("c", 2, 2, None, None, None, None, None, None),
    }


def test_blocks_are_kept_if_they_are_live_when_the_last_step_begins(ask, tmp_path):
    # Live, freed at exit, freed too early, lost, and of the last step.
    blocks = [block(2), block(3, 40), block(1, 39), block(1, state="lost"), block(40), block(40, 40)]
    # Another line has one block in each step, of which none was freed before the last one.
    blocks += [block(step, 40 if step % 2 else None, site=1) for step in range(41)]
    leaks = [{"kind": "leak", "site_id": site, "evidence_json": evidence, "rank_in_report": 0, "severity": "warning", "summary": ""}
             for site, evidence in [("0", "{}"), ("1", '{"blocks":1,"bytes":9,"bytes_per_step":null,"kind":"device"}'),
                                    ("1", '{"blocks":40,"bytes":7,"bytes_per_step":2.5,"kind":"tensors"}'),
                                    ("1", '{"blocks":0,"bytes":8,"bytes_per_step":3,"kind":"reserved"}')]]
    archive = write_archive(tmp_path / "archive", {("a", 0): {"steps": 40}}, sites={("a", 0): lines_of(MIB, MIB)},
                      allocations={("a", 0): blocks}, findings={("a", 0): leaks})
    rows = ask(archive, "leaking_lines")
    assert [(row["line"], row["most_bytes"], row["bytes_per_step"]) for row in rows] == [(11, 15, 5.0), (10, None, None)]
    [row] = ask(archive, "first_rank_to_leak")
    assert (row["line"], row["first_step"], row["blocks"], row["bytes"]) == (11, 0, 40, 40 * MIB)
    [row] = ask(archive, "slow_leaks")
    assert (row["line"], row["blocks"], row["bytes_per_step"]) == (11, 39, MIB)
    [row] = ask(archive, "never_freed")
    assert (row["line"], row["blocks"], row["bytes"]) == (11, 40, 40 * MIB)


def test_runs_with_a_leak_do_not_hide_the_function_that_grew(ask, tmp_path):
    # Of f and g. The peaks of the older runs are 100, 100 and 190 MiB: one leaked in g.
    amounts = {"old0": (50, 50), "old1": (50, 50), "old2": (50, 140), "new0": (50, 80), "new1": (50, 80), "new2": (50, 80),
               "last0": (10, 80), "last1": (10, 80), "last2": (0, 80)}
    runs, sites = {}, {}
    for number, (name, sizes) in enumerate(amounts.items()):
        columns = {"git_commit": name[:-1], "started_unix_ns": STARTED + number}
        # Two GPUs, of which one has less. The last commit needs more, and no function tells why.
        runs[name, 0] = columns | {"peak_live_bytes": (sum(sizes) + 100 * (name[:-1] == "last")) * MIB}
        runs[name, 1] = columns | {"peak_live_bytes": MIB}
        sites[name, 0] = [line | {"function": function} for line, function in zip(lines_of(*(size * MIB for size in sizes)), "fg")]
        sites[name, 1] = [line | {"function": function} for line, function in zip(lines_of(MIB // 2, MIB // 2), "fg")]
    archive = write_archive(tmp_path / "archive", runs, sites=sites)
    grown, unknown = ask(archive, "regressions", min_share=0.01)
    assert (grown["before_bytes"], grown["bytes"]) == (100 * MIB, 130 * MIB)
    assert (grown["function"], grown["line"], grown["function_grown_bytes"]) == ("g", 11, 30 * MIB)
    assert unknown["bytes"] > unknown["before_bytes"]
    assert {unknown[name] for name in ("file", "line", "function", "function_grown_bytes")} == {None}
    [row] = ask(archive, "grown_lines", before="old", after="new")
    assert (row["function"], row["line"], row["before_bytes"], row["after_bytes"]) == ("g", 11, 50 * MIB, 80 * MIB)
    assert ask(archive, "grown_lines", before="new") == []


def test_half_of_the_runs_without_a_function_count_as_zero(ask, tmp_path):
    amounts = {"old0": [90], "old1": [90], "old2": [90], "new0": [95], "new1": [95, 30], "new2": [95], "late0": [95, 30], "late1": [95, 30], "late2": [95]}
    runs = {(name, 0): {"git_commit": name[:-1], "started_unix_ns": STARTED + number, "peak_live_bytes": sum(sizes) * MIB}
            for number, (name, sizes) in enumerate(amounts.items())}
    sites = {(name, 0): [line | {"function": function} for line, function in zip(lines_of(*(size * MIB for size in sizes)), "fg")]
             for name, sizes in amounts.items()}
    rows = ask(write_archive(tmp_path / "archive", runs, sites=sites), "regressions")
    assert [(row["git_commit"], row["bytes"], row["function"], row["function_grown_bytes"]) for row in rows] == [
        ("new", 95 * MIB, "f", 5 * MIB), ("late", 125 * MIB, "g", 30 * MIB)]


#: Two ranks that were restarted: the folders of the second attempt have the next free numbers.
RESTARTED = {("job", folder): {"reported_rank": folder % 2, "world_size": 2, "started_unix_ns": STARTED + folder // 2 * 10_000 + folder % 2,
                               "duration_ns": 5_000, "exit_code": None, "steps": 40, "peak_live_bytes": peak * MIB}
             for folder, peak in enumerate([40, 90, 40, 60])}


def restarted(**others):
    """Returns the restarted job, with other columns for folders such as `f1`."""
    return {(run, folder): columns | others.get(f"f{folder}", {}) for (run, folder), columns in RESTARTED.items()}


def test_ranks_of_a_restarted_job_are_those_that_it_reported(ask, tmp_path):
    gone = {"ending": "killed", "is_complete": False, "incomplete_json": '["lost"]', "ooms": 1}
    leak = {"kind": "leak", "site_id": "0", "evidence_json": '{"bytes":1,"kind":"tensors"}', "rank_in_report": 0, "severity": "warning", "summary": ""}
    # The older attempt fails at a later step than the newer one.
    archive = write_archive(tmp_path / "archive", restarted(f1=gone, f3={"ooms": 1}),
                      sites={("job", folder): lines_of(MIB) for folder in (1, 3)}, findings={("job", folder): [leak] for folder in (1, 3)},
                      allocations={("job", 1): [block(7)], ("job", 3): [block(2)]}, segments={("job", 1): [moment(30, 50)], ("job", 3): [moment(20, 40)]})
    [row] = ask(archive, "rank_skew")
    assert (row["ranks"], row["largest_rank"], row["most_bytes"], row["least_bytes"]) == (2, 1, 60 * MIB, 40 * MIB)
    [row] = ask(archive, "first_rank_out_of_memory")
    assert (row["failed_ranks"], row["ranks"], row["first_rank"], row["attempt"], row["step"]) == (1, 2, 1, 1, 30)
    [row] = ask(archive, "first_rank_to_leak")
    assert (row["leaking_ranks"], row["ranks"], row["first_rank"], row["attempt"], row["first_step"]) == (1, 2, 1, 1, 7)
    [row] = ask(archive, "incomplete_runs")
    assert (row["rank"], row["attempt"], row["reason"]) == (1, 1, "events_missing")
    [row] = ask(archive, "peak_over_time")
    assert row["ranks"] == 2


def test_newest_attempt_decides_if_a_restarted_job_failed(ask, tmp_path):
    gone = {"ending": "killed", "ooms": 1}
    assert ask(write_archive(tmp_path / "succeeded", restarted(f0=gone, f1=gone)), "failed_runs") == []
    [row] = ask(write_archive(tmp_path / "failed", restarted(f0=gone, f1=gone, f3={"exit_code": 1})), "failed_runs")
    assert (row["cause"], row["last_started_unix_ns"]) == ("error_exit", STARTED + 10_000)
    # Processes that run at once are no attempts, and without a duration this is unknown.
    for name, duration_ns in [("at-once", 10_001), ("unknown", None)]:
        runs = {place: columns | {"duration_ns": duration_ns} for place, columns in restarted(f0=gone, f1=gone).items()}
        archive = write_archive(tmp_path / name, runs)
        [row] = ask(archive, "failed_runs")
        assert row["cause"] == "out_of_memory"
        [row] = ask(archive, "rank_skew")
        assert (row["ranks"], row["largest_rank"], row["most_bytes"]) == (2, 1, 90 * MIB)


@pytest.mark.parametrize("name, sibling", [("lk[1]", "lk1"), ("lk*", "lkx"), ("lk?", "lky"), ("lk{a,b}", "lka"), ("lk%31", "lk1")])
def test_characters_of_patterns_name_only_their_archive(ask, tmp_path, name, sibling):
    write_archive(tmp_path / sibling, {("other", 0): {}})
    archive = write_archive(tmp_path / name, {("own", 0): {}})
    assert [row["run"] for row in ask(archive, "peak_over_time")] == ["own"]


def test_backslashes_are_refused_or_read(engines, tmp_path):
    write_archive(tmp_path / "lk" / "1", {("other", 0): {}})
    archive = write_archive(tmp_path / "lk\\1", {("own", 0): {}})
    refused = f"DuckDB cannot read {archive}: its path has a backslash; rename it or use another engine"
    assert engines.ask(archive, "peak_over_time", "duckdb") == {"error": refused, "code": 5}
    for engine in ENGINES[1:]:
        assert [row["run"] for row in engines.rows(archive, "peak_over_time", engine)] == ["own"]


def test_free_memory_without_a_measurement_is_an_upper_bound(ask, tmp_path):
    gib = 1 << 30
    card = {"card": "A GPU", "card_bytes": 80 * gib, "peak_device_bytes": 71 * gib + gib // 2}
    measured = card | {"peak_used_bytes": 72 * gib + gib // 2, "peak_unaccounted_bytes": gib, "unaccounted_source": "nvml"}

    def rows(name, runs):
        columns = ("card", "runs", "most_bytes", "least_free_bytes", "full_runs", "unmeasured_runs", "is_upper_bound")
        return [tuple(row[column] for column in columns) for row in ask(write_archive(tmp_path / name, runs), "headroom_by_card")]

    # 89% of the card by the calls of the driver, and 91% with the context.
    assert rows("measured", {("a", 0): measured}) == [("A GPU", 1, 72 * gib + gib // 2, 7 * gib + gib // 2, 1, 0, False)]
    assert rows("unknown", {("a", 0): card}) == [("A GPU", 1, 71 * gib + gib // 2, 8 * gib + gib // 2, 0, 1, True)]
    # The unknown rank may be the largest.
    mixed = {("a", 0): measured, ("a", 1): card, ("b", 0): measured}
    assert rows("mixed", mixed) == [("A GPU", 2, 72 * gib + gib // 2, 7 * gib + gib // 2, 2, 1, True)]
    over = {("a", 0): measured | {"peak_used_bytes": 81 * gib}, ("b", 0): measured | {"card": "B", "card_bytes": None}}
    assert rows("over", over) == [("A GPU", 1, 81 * gib, 0, 1, 0, False), ("B", 1, 72 * gib + gib // 2, None, None, 0, False)]
