"""`whatif` and `fit` on snapshots of PyTorch: the state before the history, and the release."""

import json

import pytest

from conftest import gpumemtrace, sentences
from snapshot_reports import name_of, snapshot_files

GOLDEN = [path for path in snapshot_files() if path.name.startswith("torch-")]


def answer(command, path, *arguments):
    return json.loads(gpumemtrace(command, path, "--json", *arguments, code=None))


@pytest.fixture(params=["", "expandable_segments:True"], ids=["segments", "expandable"])
def late(request, run_python, torch_version):
    """A snapshot whose history begins late: its path, and PyTorch's numbers."""
    run = run_python(torch_version, "memory/late_snapshot.py", "late.pickle", "witness.json", PYTORCH_CUDA_ALLOC_CONF=request.param)
    return run.folder / "late.pickle", json.loads((run.folder / "witness.json").read_text())


@pytest.mark.every_torch
def test_late_history_begins_with_the_state_of_that_moment(late, torch_version):
    path, witness = late
    found = answer("whatif", path)
    start = found["start"]
    assert (start["allocated_bytes"], start["reserved_bytes"]) == (witness["begin"]["allocated"], witness["begin"]["reserved"])
    base = found["base"]
    assert base["peak_reserved_bytes"] == witness["peak"]["reserved"] == max(base["reserved_curve"]["peak_bytes"])
    assert base["peak_allocated_bytes"] == witness["peak"]["allocated"]
    assert base["end_reserved_bytes"] == witness["end"]["reserved"]
    # From 2.12 on, the order of earlier segments decides, and is unknown.
    assert found["is_reproduced"] or (int(torch_version.split(".")[1]) >= 12 and "where the run reserved" in base["reason"])
    assert base["status"] == "indicative" and "their layout is kept" in base["reason"]


@pytest.mark.every_torch
def test_fit_of_a_late_history_is_a_bound_and_names_no_step(late):
    path, witness = late
    found = answer("fit", path)
    assert "started_late" in found["may_need_more"] and "outside_unknown" in found["may_need_more"]
    assert found["least_card_bytes"] == witness["peak"]["allocated"] and found["steps"] is None
    smallest = found["rows"][0]
    assert found["least_card_bytes"] <= smallest["card_bytes"] <= -(-witness["peak"]["reserved"] // (2 << 20)) * (2 << 20)
    text = sentences(gpumemtrace("fit", path))
    assert "at least reserved retries setting" in text and "The run may need a larger one" in text
    assert "No card with less than" in text and "that holds the run" not in text and "in step" not in text


def test_without_a_history_there_is_no_prediction(run_python, torch_version):
    run = run_python(torch_version, "memory/late_snapshot.py", "state.pickle", "witness.json", "--no-history")
    witness = json.loads((run.folder / "witness.json").read_text())
    for command in ("whatif", "fit"):
        found = answer(command, run.folder / "state.pickle")
        assert (found["base"]["status"], found["base"]["peak_reserved_bytes"]) == ("refused", None)
        assert found["may_need_more"][0] == "no_history" and found["least_card_bytes"] == witness["end"]["allocated"]
        text = sentences(gpumemtrace(command, run.folder / "state.pickle"))
        assert "There is no prediction, because the recording has no allocation history" in text
        assert "known card" not in text and ("No card with less than" in text) == (command == "fit")


@pytest.mark.parametrize("path", GOLDEN, ids=name_of)
def test_keys_of_a_file_narrow_the_release(path):
    [info] = json.loads(gpumemtrace("replay", path, "--json", code=None))["traces"]
    releases, real = info["torch_releases"], int(path.name.split("-")[1].split(".")[1])
    oldest, newest = (int(releases[end].split(".")[1]) for end in ("oldest", "newest"))
    # Without events, fewer keys tell releases apart.
    assert oldest <= real <= newest and newest - oldest <= (2 if info["events"].get("block_free") else 6)


@pytest.mark.parametrize("named, expected", [("2.6", "2.6"), ("2.9", "2.7")])
def test_named_release_is_used_if_it_fits_the_keys(named, expected):
    [path] = [path for path in GOLDEN if "2.7.1-oom" in path.name]
    found = answer("whatif", path, "--torch", named)
    assert found["base"]["torch"] == expected
    assert any(row["torch"] == named for row in found["rows"])


def test_history_on_a_full_card_of_unknown_size_is_followed():
    """The card is in no snapshot. Where the driver refused memory, its released cache shows it."""
    [path] = [path for path in GOLDEN if "2.7.1-oom" in path.name]
    report = json.loads(gpumemtrace("replay", path, "--json"))
    [device] = report["devices"]
    found = answer("whatif", path)
    assert found["is_reproduced"] and found["base"]["peak_reserved_bytes"] == device["peak"]["reserved_bytes"]
    assert report["oom"]
