"""The formats `csv-sites` and `csv-timeline`, read by pandas and DuckDB. The oracle of their
numbers is `replay`.
"""

import csv

import pytest

from exported_runs import driver_run, newest, ranks_run, stepped_run  # noqa: F401 (fixtures)
from conftest import WORKLOADS
from readers import read_with_python

STEPPED = WORKLOADS / "export" / "stepped.py"

READ = """
import json, sys
import duckdb, pandas
frame = pandas.read_csv(sys.argv[1])
columns, rows = duckdb.sql(f"select * from read_csv('{sys.argv[1]}')").columns, \
    duckdb.sql(f"select * from read_csv('{sys.argv[1]}')").fetchall()
print(json.dumps({
    "pandas": json.loads(frame.to_json(orient="records")),
    "duckdb": [dict(zip(columns, row)) for row in rows],
}))
"""


def read(path):
    """Returns the rows, which both readers must read alike."""
    found = read_with_python(READ, path)
    assert found["pandas"] == found["duckdb"]
    return found["pandas"]


def live_sites(rows, device):
    return {row["site"]: (row["live_at_peak_bytes"], row["live_at_peak_blocks"])
            for row in rows if row["layer"] == "torch" and row["device"] == device and row["live_at_peak_blocks"]}


def test_sites_equal_the_peak_of_replay(stepped_run, torch_version):
    run = stepped_run(torch_version)
    rows, report = read(run.export("csv-sites")), run.report()
    [peak] = report["peak"]
    assert live_sites(rows, 0) == {site["site"]["id"]: (site["bytes"], site["blocks"]) for site in peak["sites"]}
    [device], events = report["devices"], report["traces"][0]["events"]
    of_torch = [row for row in rows if row["layer"] == "torch"]
    assert sum(row["live_at_end_bytes"] for row in of_torch) == device["exit"]["live_bytes"]
    assert sum(row["allocated_blocks"] for row in of_torch) == events["block_alloc"]
    of_driver = [row for row in rows if row["layer"] == "driver"]
    assert sum(row["live_at_end_bytes"] for row in of_driver) == device["exit"]["device_bytes"]
    named = next(site["site"] for site in peak["sites"] if site["site"]["file"])
    row = next(row for row in rows if row["site"] == named["id"])
    assert (row["file"], row["line"], row["function"]) == (named["file"], named["line"], named["function"])


def test_sites_of_a_window_are_the_state_at_its_end(stepped_run, newest):
    run = stepped_run(newest)
    rows = read(run.export("csv-sites", "--since", "step:5", "--until", "step:9"))
    [snapshot] = [one for one in run.report("--at", "step:9")["snapshots"] if one["layer"] == "torch"]
    found = {row["site"]: row["live_at_end_bytes"] for row in rows if row["layer"] == "torch" and row["live_at_end_bytes"]}
    assert found == {site["site"]["id"]: site["bytes"] for site in snapshot["sites"]}
    # The planted leak: 1 MiB in each of four steps.
    line = 1 + next(number for number, text in enumerate(STEPPED.read_text().splitlines()) if "kept.append" in text)
    [leak] = [row for row in rows if row["line"] == line]
    assert (leak["allocated_bytes"], leak["allocated_blocks"]) == (4 << 20, 4)
    [found] = run.report()["leaks"]
    assert (leak["leaked_bytes"], leak["leaked_blocks"]) == (found["bytes"], found["blocks"])
    assert sum(row["leaked_bytes"] for row in rows) == found["bytes"]


def test_peak_of_an_empty_window_is_the_state_at_it(stepped_run, newest):
    run = stepped_run(newest)
    rows = read(run.export("csv-sites", "--since", "step:9", "--until", "step:9"))
    [snapshot] = [one for one in run.report("--at", "step:9")["snapshots"] if one["layer"] == "torch"]
    expected = {site["site"]["id"]: (site["bytes"], site["blocks"]) for site in snapshot["sites"]}
    assert live_sites(rows, 0) == expected
    assert all(row["live_at_peak_bytes"] == row["live_at_end_bytes"] and row["allocated_blocks"] == 0 for row in rows)


def test_timeline_has_the_peaks_of_replay(stepped_run, torch_version):
    run = stepped_run(torch_version)
    rows, report = read(run.export("csv-timeline")), run.report()
    [device] = report["devices"]
    for series in "live", "reserved", "device":
        assert max(row[f"{series}_max_bytes"] for row in rows) == device["peak"][f"{series}_bytes"]
        assert rows[-1][f"{series}_max_bytes"] == rows[-1][f"{series}_min_bytes"] == device["exit"][f"{series}_bytes"]
    [highest] = [row for row in rows if row["begin_ns"] <= device["peak"]["time_ns"] < row["end_ns"]]
    assert highest["live_max_bytes"] == device["peak"]["live_bytes"]
    assert highest["step"] >= device["peak"]["step"]
    assert len(rows) <= 4096
    assert all(row["end_ns"] == after["begin_ns"] for row, after in zip(rows, rows[1:]))


def test_ranks_have_rows_of_their_own(ranks_run, newest):
    run = ranks_run(newest)
    rows, report = read(run.export("csv-timeline")), run.report()
    for rank, device in enumerate(report["devices"]):
        of_rank = [row for row in rows if row["rank"] == rank]
        assert {row["trace"] for row in of_rank} == {f"run.rank{rank}.trace"}
        assert max(row["live_max_bytes"] for row in of_rank) == device["peak"]["live_bytes"]


@pytest.mark.parametrize("format", ["csv-sites", "csv-timeline"])
def test_cells_are_unknown_without_pytorch(format, driver_run):
    rows = list(csv.DictReader(driver_run.export(format).read_text().splitlines()))
    assert rows
    for row in rows:
        if format == "csv-timeline":
            assert row["live_max_bytes"] == row["reserved_max_bytes"] == "", "unknown, not 0"
            assert int(row["device_max_bytes"]) > 0
        else:
            assert row["layer"] != "torch"
