"""A snapshot of PyTorch and our trace of the same run give the same report."""

import gzip
import json
import pickle
import subprocess

import pytest
from conftest import COMMAND, gpumemtrace

pytestmark = pytest.mark.every_torch


def read(path, *flags, code=0):
    return json.loads(gpumemtrace("replay", path, *flags, "--json", code=code))


@pytest.fixture(params=["", "expandable_segments:True"], ids=["segments", "expandable"])
def recorded(request, run_python, torch_version):
    """A run that PyTorch and gpumemtrace both record: its folder, and PyTorch's numbers."""
    run = run_python(torch_version, "memory/snapshot_history.py", "snapshot.pickle", "witness.json",
                     PYTORCH_CUDA_ALLOC_CONF=request.param)
    return run, json.loads((run.folder / "witness.json").read_text())


def causes(moment):
    return {cause["cause"]: cause["bytes"] for cause in moment["causes"] if cause["bytes"]}


def sites(peak):
    return {(share["site"]["file"], share["site"]["line"]): share["bytes"] for share in peak["sites"]}


def test_snapshot_and_trace_agree(recorded, torch_version):
    run, witness = recorded
    ours, theirs = run.report(), read(run.folder / "snapshot.pickle")
    [device] = theirs["devices"]
    assert (device["peak"]["live_bytes"], device["peak"]["reserved_bytes"]) == (witness["peak_live"], witness["peak_reserved"])
    assert (device["end"]["live_bytes"], device["end"]["reserved_bytes"]) == (witness["live"], witness["reserved"])
    assert device["peak"]["device_bytes"] is None and device["end"]["device_bytes"] is None, "unknown, not 0"
    assert [(peak["live_bytes"], sites(peak)) for peak in theirs["peak"]] == [(peak["live_bytes"], sites(peak)) for peak in ours["peak"]]
    assert theirs["steps"]["count"] == ours["steps"]["count"]
    [oom] = theirs["oom"]
    assert oom["requested_bytes"] == ours["oom"][0]["requested_bytes"]
    gaps = {moment["at"]["why"]: moment for moment in theirs["fragmentation"]}
    assert gaps["end"]["gap_bytes"] == witness["reserved"] - witness["requested"]
    for moment in theirs["fragmentation"]:
        assert sum(cause["bytes"] for cause in moment["causes"]) == moment["gap_bytes"]
        assert moment["gap_bytes"] == moment["reserved_bytes"] - moment["requested_bytes"]
    compared = []
    for moment in ours["fragmentation"]:
        same = gaps.get(moment["at"]["why"])
        # Our trace goes on to the exit, where the interpreter frees its objects.
        if same is not None and moment["at"]["why"] not in ("end", "last_step"):
            compared.append(moment["at"]["why"])
            assert same["gap_bytes"] == moment["gap_bytes"]
            if torch_version == "2.15.0":  # Entries of 2.9.1 have no pool.
                assert causes(same) == causes(moment)
    assert compared, "no moment is in both reports"
    info = theirs["traces"][0]
    assert (info["mode"], info["end"], info["complete"]) == (["snapshot"], "running", True)
    [assessment] = theirs["leak_assessment"]
    assert assessment["status"] == "partly" and "snapshot" in assessment["reason"]


def test_every_form_and_command(recorded, tmp_path):
    run, _ = recorded
    path = run.folder / "snapshot.pickle"
    snapshot = pickle.loads(path.read_bytes())  # Our own file.
    forms = {f"p{protocol}.pickle": pickle.dumps(snapshot, protocol) for protocol in range(2, 6)}
    forms |= {"s.json": json.dumps(snapshot).encode(), "s.pickle.gz": gzip.compress(path.read_bytes())}
    expected = read(path, "--peak", "--fragmentation")
    del expected["traces"]
    for name, data in forms.items():
        (tmp_path / name).write_bytes(data)
        report = read(tmp_path / name, "--peak", "--fragmentation")
        del report["traces"]
        assert report == expected, name
    assert "snapshot of PyTorch" in gpumemtrace("info", path)
    assert "kind=block_alloc" in gpumemtrace("dump", path)
    gpumemtrace("html", path, "-o", tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 100_000
    comparison = json.loads(gpumemtrace("compare", path, tmp_path / "s.json", "--json"))
    assert comparison["schema"] == "gpumemtrace.comparison"
    gpumemtrace("symbolize", path, code=5)
    gpumemtrace("replay", path, "--follow", code=5)


def test_overwritten_ring_is_incomplete_and_its_end_exact(run_python, torch_version):
    run = run_python(torch_version, "memory/snapshot_history.py", "snapshot.pickle", "witness.json", "--max-entries", "150")
    witness = json.loads((run.folder / "witness.json").read_text())
    report = read(run.folder / "snapshot.pickle", code=6)
    [device] = report["devices"]
    assert (device["end"]["live_bytes"], device["end"]["reserved_bytes"]) == (witness["live"], witness["reserved"])
    assert [loss["kind"] for loss in report["traces"][0]["incomplete"]] == ["history_overwritten"]
    [end] = [moment for moment in report["fragmentation"] if moment["at"]["why"] == "end"]
    assert end["gap_bytes"] == witness["reserved"] - witness["requested"]


def test_snapshot_without_history_shows_its_end_and_judges_no_leaks(recorded, tmp_path):
    run, witness = recorded
    snapshot = pickle.loads((run.folder / "snapshot.pickle").read_bytes())
    snapshot["device_traces"] = [[]]
    path = tmp_path / "state.json"
    path.write_text(json.dumps(snapshot))
    report = read(path)
    [device] = report["devices"]
    assert (device["end"]["live_bytes"], device["end"]["reserved_bytes"]) == (witness["live"], witness["reserved"])
    assert {moment["gap_bytes"] for moment in report["fragmentation"]} == {witness["reserved"] - witness["requested"]}
    assert report["leak_assessment"][0]["status"] == "not_assessed"
    assert "_record_memory_history" in report["leak_assessment"][0]["remedy"]
    assert sites(report["peak"][0]), "blocks have the stacks of their allocation"


def test_pickle_that_runs_code_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    path = tmp_path / "evil.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [Evil()]}))
    assert "GLOBAL" in gpumemtrace_error("replay", path)
    assert not (tmp_path / "ran").exists()


def gpumemtrace_error(*arguments):
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 5 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    return done.stderr
