"""Recordings that a program starts itself. Oracles: PyTorch, and the simulated driver's log."""

import json

import pytest

from conftest import dump, driver_calls, gpumemtrace, sentences
from installed_package import installed, packaged, wheel  # noqa: F401 (fixtures)

LATE = "attached_late"


def check_marks(run, whole):
    """Compares allocated and reserved bytes at each mark with PyTorch's, older memory included."""
    names = [name for name, _ in run.printed["moments"]]
    report = whole.report(*(word for name in names for word in ("--at", f"mark:{name}")))
    for name, held in run.printed["moments"]:
        at = next((one for one in report["snapshots"] if one["when"] == f"mark:{name}"), None)
        if at is None:
            assert held == {"live_bytes": 0, "reserved_bytes": 0}, "no device was known before the first call"
        else:
            known = {key: at[key] or 0 for key in held}
            assert known == held, name
    return report


@pytest.fixture
def started(packaged):  # noqa: F811
    def run(torch_version, when, **extra):
        run = packaged(torch_version, "package/start_stop.py", when, by_run=False, **extra)
        traces = list(run.folder.glob("*.trace*"))
        assert [str(path) for path in traces] == [run.printed["path"]]
        return run

    return run


@pytest.mark.parametrize("when", ["import", "first"])
def test_start_before_first_gpu_call_records_everything(torch_version, started, when):
    run = started(torch_version, when)
    assert run.printed["recording"] is False and run.process.stderr == ""
    report = check_marks(run, run)
    trace = report["traces"][0]
    assert (trace["mode"], trace["torch_tracker"], trace["complete"]) == (["started"], "attached", True)
    assert not any(note["kind"] == LATE for note in trace["notes"])
    # The trace has the driver's calls until the stop, and no later one.
    ours = [event for event in driver_calls(dump(run.trace)) if event["kind"] == "device_alloc"]
    theirs = [call for call in run.calls() if call["api"] == "cuMemAlloc_v2"]
    assert ours and [(event["addr"], event["size"]) for event in ours] == [
        (call["addr"], call["size"]) for call in theirs[: len(ours)]]
    assert [call["size"] for call in theirs[len(ours):]] == [78 << 20], "the allocation after the stop"
    assert report["devices"][0]["end"]["device_bytes"] == run.printed["before stop"]["reserved_bytes"]


@pytest.mark.parametrize("when", ["asked", "held"])
def test_late_start_records_pytorch_blocks_only(torch_version, started, when):
    run = started(torch_version, when)
    assert run.process.stderr.startswith("gpumemtrace: loaded after the CUDA driver: ") and run.process.stderr.count("\n") == 1
    assert run.printed["recording"] is (when == "held")
    report = check_marks(run, run)
    trace = report["traces"][0]
    assert (trace["mode"], trace["torch_tracker"], trace["complete"]) == (["started"], "attached", True)
    assert any(note["kind"] == LATE for note in trace["notes"])
    assert not driver_calls(dump(run.trace)), "driver calls are recorded from the start or not at all"
    assert all(device["end"]["device_bytes"] is None for device in report["devices"])
    if when == "held":
        # Older memory belongs to the line that started the recording; the gap is fully explained.
        begun = next(one for one in report["snapshots"] if one["when"] == "mark:begun")
        assert [site["site"]["function"] for site in begun["sites"]] == ["<module>"]
        assert begun["sites"][0]["site"]["file"].endswith("start_stop.py"), begun["sites"]
        of_side = run.report("--stream", str(max(streams(run))))
        assert of_side["devices"][0]["peak"]["live_bytes"] == 5 << 20


def test_late_start_knows_expandable_segments(torch_version, started):
    conf = "expandable_segments:True"
    run = started(torch_version, "held", PYTORCH_CUDA_ALLOC_CONF=conf, PYTORCH_ALLOC_CONF=conf)
    report = check_marks(run, run)
    assert report["traces"][0]["torch_tracker"] == "attached"
    assert report["devices"][0]["end"]["reserved_bytes"] == run.printed["before stop"]["reserved_bytes"]


@pytest.mark.parametrize("extra", [{"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync", "PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"},
                                   {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}], ids=["async", "uncached"])
def test_late_start_without_allocator_history(torch_version, packaged, extra):  # noqa: F811
    run = packaged(torch_version, "package/start_stop.py", "held", by_run=False, **extra)
    assert run.printed["children"][1] == 7
    for trace in run.folder.glob("*.trace"):
        report = run.report()
        assert all(device["end"]["device_bytes"] is None for device in report["devices"])
        assert all(not device["end"]["live_bytes"] for device in report["devices"])


def streams(run):
    lines = gpumemtrace("dump", run.trace).splitlines()
    told = [field.split("=")[1] for line in lines for field in line.split() if field.startswith("stream=")]
    return [int(stream, 0) for stream in told]


@pytest.mark.parametrize("when", ["first", "held"])
def test_late_start_has_lines_steps_and_backward(torch_version, started, when):
    run = started(torch_version, when)
    report = run.report()
    assert (report["steps"]["source"], report["steps"]["count"]) == ("marks", 4)
    events = [event for event in dump(run.trace) if event["kind"] == "block_alloc"]
    by_address = {event["addr"]: event for event in events}
    for address in run.printed["parameters"] + run.printed["gradients"]:
        assert by_address[address]["python"], "a line of the program"
    backward = [site for peak in report["peak"] for site in peak["sites"] if site["site"].get("is_backward")]
    assert backward and all(site["site"]["file"].endswith("start_stop.py") for site in backward)


@pytest.mark.parametrize("when", ["import", "first", "asked", "held", "thread"])
def test_stop_ends_the_trace(torch_version, started, when):
    run = started(torch_version, when)
    printed = run.printed
    assert printed["again"] is None and printed["states"] == [False, True]
    assert "a process can be recorded only once" in printed["refused"] and printed["children"] == [7, 7]
    # Beside an allocating thread, the first snapshots precede the segments; later ones have all.
    report = json.loads(gpumemtrace("replay", run.trace, "--json")) if when == "thread" else run.report()
    assert [cause for gap in report["fragmentation"] if gap["at"]["why"] == "end" for cause in gap["causes"] if cause["cause"] == "unexplained"] == []
    assert report["devices"][0]["end"]["live_bytes"] == printed["before stop"]["live_bytes"]
    assert report["devices"][0]["end"]["reserved_bytes"] == printed["before stop"]["reserved_bytes"]
    trace = report["traces"][0]
    assert trace["complete"] and trace["end"] == "exit"
    assert "the program ended the recording (gpumemtrace.stop()) and went on" in [note["message"] for note in trace["notes"]]
    assert "later" not in [mark["name"] for mark in report.get("marks", [])]
    assert "trace complete" in sentences(gpumemtrace("replay", run.trace))


def test_start_under_run_is_a_no_op_and_stop_works(torch_version, packaged):  # noqa: F811
    run = packaged(torch_version, "package/start_stop.py", "first")
    assert run.printed["path"] == str(run.folder / "run.trace"), "the path that `run` chose"
    report = check_marks(run, run)
    assert report["traces"][0]["mode"] == ["preload"] and run.printed["children"] == [7, 7]
    assert report["traces"][0]["complete"] and "later" not in [mark["name"] for mark in run.report()["marks"]]
