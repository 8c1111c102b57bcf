"""Profiles for speedscope: its schema, its page in Chromium, and the report's totals."""

import json

import pytest

from readers import node_package, read_with_python
from speedscope_page import format_size, open_in_speedscope
from stack_exports import deepest_user_lines, peak_lines
from stack_exports import stack_run  # noqa: F401 (fixture)

TITLES = {"peak": "live at the peak", "end": "live at the end", "allocated": "allocated", "leaked": "leaked"}
VALIDATE = """
import json, sys, jsonschema
schema, file = (json.load(open(path)) for path in sys.argv[1:])
validator = jsonschema.Draft7Validator(schema)
print(json.dumps([error.message[:500] for error in validator.iter_errors(file)]))
"""


def read_profiles(path):
    """Returns the profiles by name."""
    profiles = json.loads(path.read_text())["profiles"]
    assert len({profile["name"] for profile in profiles}) == len(profiles)
    return {profile["name"]: profile for profile in profiles}


def expected_sums(run):
    """Returns the sums that profiles must have, by name; None where the report has no number."""
    names = ["GPU 0"] if len(run.traces) == 1 else [f"rank {rank}, GPU 0" for rank in range(len(run.traces))]
    sums = {}
    for device, totals in zip(names, run.totals):
        for value, title in TITLES.items():
            bytes_, blocks = totals[value]
            if bytes_:
                sums[f"{device}: {title}"] = bytes_
                sums[f"{device}: {title} (blocks)"] = blocks
    return sums


@pytest.mark.parametrize("name", ["leak", "oom", "hostile", "ranks"])
def test_profiles_sum_to_the_report(stack_run, name):
    run = stack_run(name)
    profiles = read_profiles(run.export("speedscope"))
    expected = expected_sums(run)
    assert set(profiles) == set(expected)
    for title, profile in profiles.items():
        assert sum(profile["weights"]) == profile["endValue"] - profile["startValue"]
        if expected[title] is not None:
            assert profile["endValue"] == expected[title], title


def test_lines_hold_at_the_peak_what_the_report_says(stack_run):
    run = stack_run("leak")
    file = json.loads(run.export("speedscope").read_text())
    frames, profile = file["shared"]["frames"], file["profiles"][file["activeProfileIndex"]]
    assert profile["name"] == "GPU 0: live at the peak"
    stacks = [[(frames[index].get("file"), frames[index].get("line")) for index in sample] for sample in profile["samples"]]
    assert deepest_user_lines(zip(stacks, profile["weights"])) == peak_lines(run.report)


def test_value_comes_first(stack_run):
    first = json.loads(stack_run("leak").export("speedscope", "--weight", "leaked").read_text())["profiles"][0]
    assert first["name"] == "GPU 0: leaked"


@pytest.mark.parametrize("name", ["hostile", "ranks"])
def test_files_have_the_published_schema(stack_run, name):
    schema = node_package("speedscope") / "dist" / "release" / "file-format-schema.json"
    path = stack_run(name).export("speedscope")
    assert read_with_python(VALIDATE, schema, path) == []
    assert json.loads(path.read_text())["$schema"] == "https://www.speedscope.app/file-format-schema.json"


@pytest.mark.parametrize("name", ["hostile", "ranks"])
def test_speedscope_shows_every_profile(stack_run, name, tmp_path):
    run = stack_run(name)
    path = run.export("speedscope")
    shown = open_in_speedscope(path, tmp_path)
    profiles = read_profiles(path)
    sizes = {title: format_size(profile["endValue"]) if profile["unit"] == "bytes" else f"{profile['endValue']:,}"
             for title, profile in profiles.items()}
    assert shown.profiles == sizes


def test_equal_traces_give_equal_files(stack_run):
    run = stack_run("hostile")
    first = run.export("speedscope").read_bytes()
    assert run.export("speedscope").read_bytes() == first
