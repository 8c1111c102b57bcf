"""One run in every format: no export and no page shows a number that another one contradicts."""

import csv
import json
import re
import xml.etree.ElementTree as ElementTree

import pytest

from exported_runs import driver_run, newest, ranks_run, stepped_run  # noqa: F401 (fixtures)
from conftest import gpumemtrace
from consistency import assert_consistent
from page_file import PageFile


def rows_of(run, format):
    with open(run.export(format), newline="") as table:
        return list(csv.DictReader(table))


def total(rows, column, layer, device):
    return sum(int(row[column]) for row in rows if row["layer"] == layer and row["device"] == str(device))


@pytest.fixture(params=["stepped", "driver", "ranks"])
def run(request, stepped_run, driver_run, ranks_run, newest):  # noqa: F811
    return {"stepped": lambda: stepped_run(newest), "driver": lambda: driver_run, "ranks": lambda: ranks_run(newest)}[request.param]()


def test_page_has_the_report_of_replay(run):
    page = run.folder / "page.html"
    gpumemtrace("html", *run.traces, "-o", page)
    report = json.loads(PageFile(page).report_bytes)
    assert_consistent(report)
    known = run.report()
    assert {key: report[key] for key in known} == known


def test_exports_agree_with_the_report(run):
    report = run.report()
    sites, intervals = rows_of(run, "csv-sites"), rows_of(run, "csv-timeline")
    for index, (trace, info) in enumerate(zip(run.traces, report["traces"], strict=True)):
        own_sites = [row for row in sites if row["trace"] == trace.name]
        own_intervals = [row for row in intervals if row["trace"] == trace.name]
        for device in (row for row in report["devices"] if row["trace"] == index):
            ordinal, peak, end = device["device"], device["peak"], device["exit"]
            layer, level = ("torch", "live") if peak["live_bytes"] else ("driver", "device")
            assert total(own_sites, "live_at_peak_bytes", layer, ordinal) == peak[f"{level}_bytes"]
            assert total(own_sites, "live_at_end_bytes", layer, ordinal) == end[f"{level}_bytes"]
            if layer == "torch" and len(report["devices"]) == len(run.traces):
                assert total(own_sites, "allocated_blocks", layer, ordinal) == info["events"]["block_alloc"]
            for name in ("live", "reserved", "device"):
                highest = [int(row[f"{name}_max_bytes"]) for row in own_intervals
                           if row["device"] == str(ordinal) and row[f"{name}_max_bytes"]]
                assert not highest or max(highest) == peak[f"{name}_bytes"]


def test_flame_graphs_and_pictures_have_the_same_peak(run):
    peaks = sorted(peak["live_bytes"] if peak["layer"] == "torch" else peak.get("device_bytes", peak["live_bytes"])
                   for peak in run.report()["peak"])
    profiles = json.loads(run.export("speedscope").read_text())["profiles"]
    found = sorted(profile["endValue"] for profile in profiles if re.fullmatch(r".*live at the peak", profile["name"]))
    assert found == peaks
    folded = run.export("folded").read_text().splitlines()
    assert sum(int(line.rsplit(" ", 1)[1]) for line in folded) == sum(peaks)
    texts = ["".join(text.itertext()) for text in ElementTree.parse(run.export("svg")).iter("{http://www.w3.org/2000/svg}text")]
    assert sum(text.startswith("peak ") for text in texts) == len(run.report()["devices"])
