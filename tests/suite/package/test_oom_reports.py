"""The report written beside the trace when PyTorch runs out of GPU memory."""

import json

from conftest import sentences
from installed_package import installed, packaged, wheel  # noqa: F401 (fixtures)

KINDS = ["KeyError", "OutOfMemoryError", "OutOfMemoryError", "OutOfMemoryError"]


def test_oom_writes_report_and_error_propagates(torch_version, packaged):
    run = packaged(torch_version, "memory/oom_capture.py")
    told = run.printed
    assert told["kinds"] == KINDS and all(told["same"]) and told["context"] == [True, True, True] and told["answer"] == 42
    own = ["run.oom.json", "run.oom.txt"]
    assert told["files"] == [[], own, ["named oom.json", "named oom.txt", *own], ["named oom.json", "named oom.txt", *own]]
    first = json.loads((run.folder / "run.oom.json").read_text())
    [oom] = first["oom"]
    assert (oom["requested_bytes"], oom["live_bytes"]) == (1 << 42, (12 << 20) + 512)
    assert oom["site"]["function"] == "too_much" and oom["site"]["file"].endswith("oom_capture.py")
    text = sentences((run.folder / "run.oom.txt").read_text())
    assert "Out of memory" in text and "oom_capture.py:" in text and "in too_much()" in text and "The request of 4.00 TiB exceeds the GPU" in text
    # The second report includes the first error.
    assert len(json.loads((run.folder / "named oom.json").read_text())["oom"]) == 2
    printed = run.process.stderr.splitlines()
    assert printed[0] == f"gpumemtrace: out of GPU memory: report written to {run.folder / 'run.oom.txt'}"
    assert printed[2].startswith("gpumemtrace: out of GPU memory, but the report failed: ") and "nowhere" in printed[2]
    # It equals the report of the whole trace for the same error.
    whole = run.report("--oom")["oom"]
    assert len(whole) == 3 and whole[0]["requested_bytes"] == oom["requested_bytes"] and whole[0]["sites"] == oom["sites"]


def test_oom_without_recording_warns_once(torch_version, packaged):
    run = packaged(torch_version, "memory/oom_capture.py", by_run=False)
    assert run.printed["kinds"] == KINDS and run.printed["files"] == [[]] * 4
    [line] = run.process.stderr.splitlines()
    assert line.startswith("gpumemtrace: out of GPU memory, but no report was written: this process is not being recorded")


def test_reports_replace_only_reports(torch_version, packaged):
    notes = "my own notes"
    run = packaged(torch_version, "memory/oom_capture.py", name="kept", before=lambda folder: (folder / "run.oom.txt").write_text(notes))
    assert (run.folder / "run.oom.txt").read_text() == notes
    assert "Out of memory" in (run.folder / "run.oom.1.txt").read_text() and (run.folder / "run.oom.1.json").exists()
