"""Marks, phases and steps, also those before the first GPU call. The oracle is PyTorch."""

import subprocess

from conftest import COMMAND, gpumemtrace, sentences
from installed_package import installed, packaged, wheel  # noqa: F401 (fixtures)


def test_markers_before_first_gpu_call_are_recorded(torch_version, packaged):
    run = packaged(torch_version, "package/early_markers.py")
    told, report = run.printed, run.report()
    phases = {phase.pop("name"): phase for phase in report["phases"]}
    assert set(phases) == {"around", "of another thread", "turn"}, "phases before the first call held nothing"
    for name in ("around", "of another thread"):
        assert phases[name]["count"] == 1
        assert phases[name]["devices"] == [{"device": 0} | told[name]], name
    assert phases["turn"]["count"] == 3
    assert (report["steps"]["source"], report["steps"]["count"]) == ("marks", told["step"]) == ("marks", 4)
    assert report["traces"][0]["complete"]
    # In call order.
    kinds = [event["kind"] for event in run.events() if event["kind"] in ("mark", "phase_begin", "phase_end")]
    assert kinds[:6] == ["mark", "mark", "phase_begin", "phase_begin", "mark", "mark"]


def test_markers_without_gpu_leave_no_file(torch_version, packaged):
    run = packaged(torch_version, "package/early_markers.py", "nothing")
    assert not list(run.folder.glob("*.trace*"))
    assert run.process.stderr.startswith("gpumemtrace: no trace: the command made no GPU call")


def test_marks_select_points_in_time(torch_version, packaged):
    run = packaged(torch_version, "package/early_markers.py")
    told = run.printed["marks"]
    marks = run.report()["marks"]
    assert [mark["name"] for mark in marks] == [name for name, _, _ in told]
    assert [mark["step"] for mark in marks] == [step for _, _, step in told]
    assert sorted(mark["time_ns"] for mark in marks) == [mark["time_ns"] for mark in marks]
    # Each mark by name, with PyTorch's bytes at that time.
    asked = ["mark:loaded 2", "mark:turn", "mark:turn#2", "mark:turn#3", "mark:the end: 100 %"]
    report = run.report(*(word for name in asked for word in ("--at", name)))
    held = {instant["when"]: instant["live_bytes"] for instant in report["snapshots"]}
    expected = [live for name, live, _ in told if name in ("turn", "the end: 100 %")]
    assert [held[name] for name in asked[1:]] == expected and not held.get("mark:loaded 2")
    # From one mark on.
    since = run.report("--since", "mark:turn#3")
    assert [mark["name"] for mark in since["marks"]] == ["turn", "the end: 100 %"]
    assert since["traces"][0]["since"]["step"] == 4
    assert since["peak"][0]["live_bytes"] == expected[-1] + (128 << 20)
    text = gpumemtrace("replay", run.trace, "--timeline")
    for letter, (name, _, step) in zip("abcdef", told):
        assert f"{letter} {name} (" in text and f"step {step})" in text, text
    assert "mark" not in run.report("--peak"), "marks belong to the timeline"


def test_unknown_mark_lists_known_marks(torch_version, packaged):
    run = packaged(torch_version, "package/early_markers.py")
    for option in ("--at", "--since"):
        done = subprocess.run([COMMAND, "replay", run.trace, option, "mark:nobody"], capture_output=True, text=True)
        printed = sentences(done.stderr)
        assert done.returncode == 2 and "mark:nobody was not reached" in printed, printed
        assert "the program set the marks loaded 1, loaded 2, turn, the end: 100 %" in printed
