"""The format `traceml`, read by TraceML 0.5.0. The oracles of its numbers are PyTorch's own peaks
of each step, and `replay`.
"""

import json
from statistics import fmean

import pytest

from exported_runs import driver_run, newest, ranks_run, stepped_run  # noqa: F401 (fixtures)
from readers import read_with_python, reader_program, run_reader

#: TraceML's own classes check the blocks of a section against each other.
VALIDATE = """
import json, sys
from pathlib import Path
from traceml_ai.reporting.compare.io import load_summary_json
from traceml_ai.reporting.schema import BaseSectionPayload, empty_section_payload
summary = load_summary_json(Path(sys.argv[1]))
for name in "system", "process", "step_time", "step_memory":
    section = summary[name]
    own = dict(metadata=section["metadata"], diagnosis=section["diagnosis"], issues=section["issues"],
               global_summary=section["global"], groups=section["groups"], units=section["units"], card=section["card"])
    assert BaseSectionPayload(**own).to_json() == section
    assert set(section) == set(empty_section_payload(section_name=name))
    assert set(section["metadata"]) >= set(empty_section_payload(section_name=name)["metadata"])
print(json.dumps(summary))
"""


def export(run, *options):
    return run.export("traceml", *options, name="exported.json")


def load(path):
    return read_with_python(VALIDATE, path)


def traceml(*arguments):
    return run_reader([reader_program("traceml"), *arguments]).stdout


def test_memory_is_the_mean_of_pytorchs_peaks_of_steps(stepped_run, torch_version):
    run = stepped_run(torch_version)
    summary, report = load(export(run)), run.report()
    peaks = json.loads((run.folder / "peaks").read_text())
    section = summary["step_memory"]
    row = section["groups"]["rows"]["0"]["metrics"]
    assert row["peak_allocated_bytes"] == pytest.approx(fmean(allocated for allocated, _ in peaks), rel=1e-12)
    assert row["peak_reserved_bytes"] == pytest.approx(fmean(reserved for _, reserved in peaks), rel=1e-12)
    window = section["global"]["window"]
    assert (window["steps_analyzed"], window["start_step"], window["end_step"]) == (24, 1, 24)
    assert section["global"]["average"] == row
    assert section["global"]["worst"]["peak_reserved_bytes"] == {"idx": "0", "value": row["peak_reserved_bytes"]}
    timing = summary["step_time"]["groups"]["rows"]["0"]["metrics"]
    assert 0 < timing["step_time_ms"] * 24 < report["traces"][0]["duration_ns"] / 1e6
    assert [name for name, value in timing.items() if value is not None] == ["step_time_cpu_ms", "step_time_ms"]
    assert summary["duration_s"] == pytest.approx(report["traces"][0]["duration_ns"] / 1e9)


def test_leak_is_a_finding_with_its_line(stepped_run, newest):
    run = stepped_run(newest)
    path = export(run)
    [issue] = load(path)["step_memory"]["issues"]
    [leak] = run.report()["leaks"]
    assert issue["status"] == "MEMORY CREEP"
    assert f"stepped.py:{leak['site']['line']}" in issue["summary"] and "+1.00 MiB/step" in issue["summary"]
    shown = traceml("view", path)
    assert issue["summary"] in shown and "peak allocated" in shown
    card = traceml("view", path, "--re-render")
    assert "MEMORY CREEP" in card and "24 common steps" in card


def test_traceml_compares_and_renders_it(stepped_run, ranks_run, newest, tmp_path):
    one, other = export(stepped_run(newest)), export(ranks_run(newest))
    traceml("compare", one, other, "--output", tmp_path / "compared")
    compared = json.loads((tmp_path / "compared.json").read_text())
    assert compared["verdict"]["comparability"]["overall"]["state"] == "comparable"
    same = tmp_path / "same"
    traceml("compare", one, one, "--output", same)
    assert json.loads((tmp_path / "same.json").read_text())["verdict"]["status"] == "EQUIVALENT"
    page = tmp_path / "page.html"
    traceml("view", one, "--html", page)
    assert "MEMORY CREEP" in page.read_text()


def test_ranks_are_rows(ranks_run, newest):
    run = ranks_run(newest)
    section = load(export(run))["step_memory"]
    rows = section["groups"]["rows"]
    assert list(rows) == ["0", "1"]
    assert {row["identity"]["world_size"] for row in rows.values()} == {2}
    worst = max(rows, key=lambda rank: rows[rank]["metrics"]["peak_allocated_bytes"])
    assert section["global"]["worst"]["peak_allocated_bytes"]["idx"] == worst == "1", "it leaks"
    assert section["global"]["average"]["peak_allocated_bytes"] == pytest.approx(
        fmean(row["metrics"]["peak_allocated_bytes"] for row in rows.values()))


def test_window_has_its_whole_steps(stepped_run, newest):
    run = stepped_run(newest)
    section = load(export(run, "--since", "step:5", "--until", "step:9"))["step_memory"]
    peaks = json.loads((run.folder / "peaks").read_text())
    window = section["global"]["window"]
    assert window["steps_analyzed"] == len(range(window["start_step"], window["end_step"] + 1))
    inside = peaks[window["start_step"] - 1:window["end_step"]]
    assert 3 <= len(inside) <= 4
    assert section["global"]["average"]["peak_allocated_bytes"] == pytest.approx(fmean(one for one, _ in inside))


def test_nothing_is_invented_without_steps(driver_run):
    summary = load(export(driver_run))
    assert summary["step_memory"]["groups"]["rows"] == {}
    assert set(summary["step_memory"]["global"]["average"].values()) == {None}
    assert summary["step_memory"]["metadata"]["mode"] == "no_data"
