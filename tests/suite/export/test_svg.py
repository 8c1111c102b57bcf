"""The format `svg`, read as XML. The oracle of its shapes is the timeline of `replay`."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from exported_runs import driver_run, newest, ranks_run, stepped_run  # noqa: F401 (fixtures)
from conftest import WORKLOADS, gpumemtrace

SVG = "{http://www.w3.org/2000/svg}"
#: The height of a plot and its lower edge, in pixels.
PLOT, BOTTOM = 260, 316


def read(run, *options):
    return ElementTree.parse(run.export("svg", *options)).getroot()


def places(shape):
    return [tuple(map(float, place.split(","))) for place in shape.get("points").split()]


def texts(chart):
    return ["".join(text.itertext()) for text in chart.iter(f"{SVG}text")]


def test_areas_and_lines_have_the_heights_of_the_timeline(stepped_run, torch_version):
    run = stepped_run(torch_version)
    [chart] = read(run).findall(f"{SVG}g")
    [timeline] = run.report()["timelines"]
    points = timeline["points"]
    highest = max(max(point["live_bytes"], point["reserved_bytes"], point["device_bytes"]) for point in points)
    areas = chart.findall(f"{SVG}polygon")
    # The upper edge of the last area is the allocated memory, point by point.
    upper = places(areas[-1])[:len(points)]
    for (_, top), point in zip(upper, points, strict=True):
        assert BOTTOM - top == pytest.approx(PLOT * point["live_bytes"] / highest, abs=0.2)
    for line, level in zip(chart.findall(f"{SVG}polyline"), ("device_bytes", "reserved_bytes"), strict=True):
        for (_, top), point in zip(places(line), points, strict=True):
            assert BOTTOM - top == pytest.approx(PLOT * point[level] / highest, abs=0.2)
    peak = run.report()["devices"][0]["peak"]["live_bytes"]
    assert f"peak {peak / (1 << 20):.2f} MiB" in texts(chart)


def test_picture_names_program_finding_and_errors(run_python, torch_version, tmp_path):
    run = run_python(torch_version, WORKLOADS / "leaks/first_contact.py", "first_step", SIMGPU_MEM="700M", check=False)
    gpumemtrace("export", "svg", run.trace, "-o", tmp_path / "picture.svg")
    [chart] = ElementTree.parse(tmp_path / "picture.svg").getroot().findall(f"{SVG}g")
    shown = texts(chart)
    assert any("GPU 0" in text for text in shown)
    assert any(re.search(r"out of memory: [\d.]+ MiB requested", text) for text in shown)
    assert any("Out of memory on GPU 0" in text for text in shown)


def test_each_gpu_has_a_chart_and_a_window_cuts_it(ranks_run, stepped_run, newest):
    assert len(read(ranks_run(newest)).findall(f"{SVG}g")) == len(ranks_run(newest).report()["devices"])
    whole, part = read(stepped_run(newest)), read(stepped_run(newest), "--since", "step:5")
    count = lambda picture: len(places(picture.find(f"{SVG}g/{SVG}polyline")))  # noqa: E731
    assert 0 < count(part) < count(whole)


def test_run_without_pytorch_shows_the_driver(driver_run):
    [chart] = read(driver_run).findall(f"{SVG}g")
    lines = chart.findall(f"{SVG}polyline")
    assert len(lines) == 1 and chart.findall(f"{SVG}polygon")
    assert any(text.startswith("allocated from the driver: ") for text in texts(chart))
