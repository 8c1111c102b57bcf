"""Filtered reports equal PyTorch's numbers for the same selection; texts fit the terminal."""

import json
import os
import pty
import re
import subprocess
import unicodedata

import pytest
from conftest import COMMAND, gpumemtrace
from consistency import assert_consistent

STEPS = 40
#: Each sentence on one line, whatever the width of the terminal that runs the tests.
WIDE = {"COLUMNS": "200", "LC_ALL": "C.UTF-8"}


def clean(**extra):
    """Returns an environment without terminal settings."""
    ours = ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "CI", "GITHUB_ACTIONS", "TERM", "LC_ALL", "LC_CTYPE", "LANG")
    return {key: value for key, value in os.environ.items() if key not in ours} | {"GPUMEMTRACE_CACHE": "off"} | extra


def replay(*arguments, code=0, **extra):
    """Returns standard output and standard error of a replay without a terminal."""
    done = subprocess.run([COMMAND, "replay", *map(str, arguments)], capture_output=True, text=True, timeout=120,
                          env=clean(**(extra or WIDE)))
    assert done.returncode == code, done.stdout[-2000:] + done.stderr
    return done.stdout, done.stderr


def report(*arguments, code=0):
    report = json.loads(replay(*arguments, "--json", code=code)[0])
    assert_consistent(report)
    return report


@pytest.fixture
def parts(run_python, torch_version):
    run = run_python(torch_version, "memory/filtered_run.py", STEPS, "--devices", 2, SIMGPU_DEVICES=2)
    return run, json.loads(run.process.stdout)


def test_filtered_reports_equal_pytorch(parts):
    run, printed = parts
    whole = report(run.trace)

    # From a step on: PyTorch's peak was reset there.
    half = report(run.trace, "--since", f"step:{printed['half']['step']}")
    device = half["devices"][0]
    assert device["peak"]["live_bytes"] == printed["half"]["peak_bytes"] < whole["devices"][0]["peak"]["live_bytes"]
    assert device["peak"]["reserved_bytes"] == printed["half"]["peak_reserved_bytes"]
    assert half["traces"][0]["since"]["step"] == half["timeline"]["points"][0]["step"] == printed["half"]["step"]
    assert sum(site["bytes"] for site in half["peak"][0]["sites"]) == printed["half"]["peak_bytes"]
    functions = {site["site"]["function"] for site in half["peak"][0]["sites"]}
    assert "on_the_default_stream" in functions, "memory from before the step has its line"
    (leak,) = [leak for leak in half["leaks"] if leak["kind"] == "tensors"]
    assert (leak["site"]["function"], leak["bytes_per_step"]) == ("keep", 1 << 20)
    # The same by time, at the event of a mark that PyTorch's numbers belong to.
    marks = [event for event in run.events() if event["kind"] == "mark"]
    started = next(line for line in gpumemtrace("dump", run.trace).splitlines() if line.startswith("# meta started_ns="))
    moment = int(marks[printed["half"]["step"] - 1]["time_ns"]) - int(started.split("=")[1])
    by_time = report(run.trace, "--since", f"{moment}ns")
    assert by_time["devices"][0]["peak"]["live_bytes"] == printed["half"]["peak_bytes"]
    assert not [verdict for verdict in by_time["verdicts"] if verdict["kind"] in ("unmatched_blocks", "total_mismatch")]

    # Per stream: PyTorch's snapshot has its segments.
    for name, stream in printed["streams"].items():
        of = report(run.trace, "--stream", name)
        assert of["devices"][0]["end"]["live_bytes"] == stream["live_bytes"]
        assert of["devices"][0]["end"]["reserved_bytes"] == stream["reserved_bytes"]
        assert of["devices"][0]["peak"]["device_bytes"] is None and "oom" not in of
        end = next(moment for moment in of["fragmentation"] if moment["device"] == 0 and moment["at"]["why"] == "end")
        assert end["gap_bytes"] == sum(cause["bytes"] for cause in end["causes"])
        assert end["reserved_bytes"] == stream["reserved_bytes"]
    side = report(run.trace, "--stream", hex(printed["side"]))
    assert side["peak"][0]["live_bytes"] == 13 << 20
    assert {site["site"]["function"] for site in side["peak"][0]["sites"]} == {"on_the_side_stream"}
    assert len(printed["streams"]) == 2

    # Per device.
    for ordinal, device in enumerate(printed["devices"]):
        of = report(run.trace, "--gpu", ordinal)
        (only,) = of["devices"]
        assert only["device"] == ordinal
        assert only["end"]["live_bytes"] == device["end_bytes"]
        if ordinal:
            assert only["peak"]["live_bytes"] == device["peak_bytes"]
        assert {part["device"] for part in of["peak"] + of["fragmentation"] + of["timelines"]} == {ordinal}
    assert len(report(run.trace, "--gpu", "0,1")["devices"]) == 2

    # Per line, in JSON and in text.
    for pattern in ("filtered_run.py:on_the_side_stream", "on_the_side_*", "*"):
        of = report(run.trace, "--site", pattern)
        for peak, all_of_it in zip(of["peak"], whole["peak"], strict=True):
            assert peak["omitted"]["bytes"] + sum(site["bytes"] for site in peak["sites"]) == all_of_it["live_bytes"]
            assert peak["omitted"]["count"] + len(peak["sites"]) == len(all_of_it["sites"])
    assert all(peak["omitted"]["count"] == 0 for peak in of["peak"])
    by_id = report(run.trace, "--peak", "--site", whole["peak"][0]["sites"][0]["site"]["id"])
    assert by_id["peak"][0]["sites"] == whole["peak"][0]["sites"][:1]
    shown, _ = replay(run.trace, "--peak", "--site", "on_the_side_stream")
    assert "other call site" in shown and "only call sites that match" in shown
    shown, errors = replay(run.trace, "--site", "no_such_function")
    assert errors.count("\n") == 1 and "no_such_function" in errors

    # A limited number of rows.
    top = report(run.trace, "--top", 1)
    assert [len(peak["sites"]) for peak in top["peak"]] == [1, 1]
    assert top["peak"][0]["omitted"]["bytes"] + top["peak"][0]["sites"][0]["bytes"] == top["peak"][0]["live_bytes"]
    assert "omitted" not in json.dumps(whole)


def test_unmatched_filter_is_refused_in_one_line(parts):
    run, printed = parts
    for arguments, says in [
        (["--since", "step:100000"], "was not reached"), (["--since", "1h"], "no event follows"), (["--since", "soon"], "is not a time"),
        (["--gpu", "7"], "there are 0, 1"), (["--rank", "3"], "no trace has a rank"),
        (["--stream", "12345"], hex(printed["side"])), (["--stream", "left"], "not a stream"),
    ]:
        shown, errors = replay(run.trace, *arguments, code=2)
        assert shown == "" and says in errors, errors
        if "error:" not in errors:
            assert errors.count("\n") == 1, errors


def test_unknown_stream_is_not_guessed(run_python, torch_version):
    run = run_python(torch_version, "memory/filtered_run.py", 4, GPUMEMTRACE_TORCH_DETAILS="off")
    _, errors = replay(run.trace, "--stream", "0", code=2)
    assert "not_wanted" in errors or "tracker" in errors


def test_rank_filter_does_not_read_other_traces(run_python, torch_version):
    runs = {rank: run_python(torch_version, "memory/filtered_run.py", 4 + rank, name=f"rank{rank}", RANK=rank, WORLD_SIZE=2)
            for rank in (0, 1)}
    traces = [next(run.folder.glob("*.trace")) for run in runs.values()]
    other = run_python(torch_version, "memory/filtered_run.py", 4, name="alone").trace
    for rank in runs:
        only = report(*traces, "--rank", rank)
        assert [trace["rank"] for trace in only["traces"]] == [rank]
        assert only["steps"]["count"] == 4 + rank
    assert len(report(*traces, "--rank", "0,1")["traces"]) == 2
    shown, errors = replay(*traces, other, "--rank", 1)
    assert str(other) in errors and str(other) not in shown
    _, errors = replay(*traces, "--rank", 5, code=2)
    assert "there are ranks 0, 1" in errors
    # The other trace is truncated, which reading it would report.
    traces[0].write_bytes(traces[0].read_bytes()[:-200])
    report(*traces, "--rank", 1)
    assert report(*traces, "--rank", 0, code=6)


def columns(line):
    """Returns the number of terminal columns of a line."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in line)
    return wide + sum(not unicodedata.combining(char) for char in line)


def in_a_terminal(arguments, width, **extra):
    """Returns the output sent to a terminal of that width."""
    main, other = pty.openpty()
    import fcntl
    import struct
    import termios
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    process = subprocess.Popen([COMMAND, *map(str, arguments)], stdout=other, stderr=subprocess.DEVNULL, stdin=other,
                               env=clean(**extra))
    os.close(other)
    sent = b""
    while True:
        try:
            piece = os.read(main, 65536)
        except OSError:
            break
        if not piece:
            break
        sent += piece
    os.close(main)
    assert process.wait(60) == 0
    return sent.decode().replace("\r\n", "\n")


ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
SECTIONS = ("--leaks", "--timeline", "--fragmentation", "--peak", "--oom", "--stacks")


@pytest.fixture
def named_oddly(run_python, torch_version, tmp_path):
    """A run with deep code in a file with wide characters and terminal controls in its name."""
    import conftest
    folder = tmp_path / ("a_long_name_of_a_folder" * 4) / "模型\x1b[31m"
    folder.mkdir(parents=True)
    script = folder / "訓練模型檔案.py"
    script.write_text((conftest.WORKLOADS / "memory/filtered_run.py").read_text())
    return run_python(torch_version, script, STEPS)


def test_texts_fit_terminal_and_contain_no_controls(named_oddly, monkeypatch):
    trace = named_oddly.trace.relative_to(named_oddly.folder)
    monkeypatch.chdir(named_oddly.folder)
    for width in (40, 80, 120, 200):
        for sections in [[], *([section] for section in SECTIONS), ["--units", "bytes", "--timeline", "--peak"]]:
            extra = {"LC_ALL": "C.UTF-8", "TERM": "xterm"}
            shown = in_a_terminal(["replay", trace, *sections], width, **extra)
            piped, _ = replay(trace, *sections, LC_ALL="C.UTF-8", COLUMNS=str(width))
            assert ESCAPE.search(shown) and not ESCAPE.search(piped)
            assert ESCAPE.sub("", shown) == piped, "a pipe gets the text of a terminal of equal width"
            for line in piped.splitlines():
                assert columns(line) <= width, (width, sections, line)
            assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", piped)
            if "--peak" in sections and width > 40:
                assert "訓練模型檔案.py:" in piped, "the name of the file is whole"
    piped, _ = replay(trace, "--leaks", LC_ALL="C.UTF-8")
    narrow, _ = replay(trace, "--leaks", LC_ALL="C.UTF-8", COLUMNS="40")
    assert len(piped.splitlines()) < len(narrow.splitlines()), "without COLUMNS a pipe is not wrapped"
    raw, _ = replay(trace, "--json", LC_ALL="C.UTF-8")
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", raw)


def test_colour_and_unicode_follow_environment(parts):
    run, _ = parts
    terminal = {"LC_ALL": "C.UTF-8", "TERM": "xterm"}
    for extra, arguments, has_color in [
        ({}, [], True), ({"NO_COLOR": "1"}, [], False), ({"TERM": "dumb"}, [], False), ({"CI": "true"}, [], False),
        ({"GITHUB_ACTIONS": "true"}, [], False), ({"GITHUB_ACTIONS": "true", "FORCE_COLOR": "1"}, [], True),
        ({"NO_COLOR": "1"}, ["--color", "always"], True), ({}, ["--color", "never"], False),
    ]:
        shown = in_a_terminal(["replay", run.trace, *arguments], 100, **(terminal | extra))
        assert bool(ESCAPE.search(shown)) == has_color, (extra, arguments)
    for extra, has_color in [({}, False), ({"FORCE_COLOR": "1"}, True), ({"CLICOLOR_FORCE": "1"}, True),
                             ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)]:
        shown, _ = replay(run.trace, LC_ALL="C.UTF-8", **extra)
        assert bool(ESCAPE.search(shown)) == has_color, extra
    for extra, is_ascii in [({"LC_ALL": "C"}, True), ({"LC_ALL": "C.UTF-8"}, False), ({"LANG": "de_DE.UTF-8"}, False),
                            ({"LC_ALL": "C.UTF-8", "TERM": "linux"}, True), ({"LC_CTYPE": "POSIX", "LANG": "C.UTF-8"}, True)]:
        shown, _ = replay(run.trace, "--timeline", **extra)
        assert shown.isascii() == is_ascii, extra
        assert ("#" in shown) == is_ascii and "^" in shown


def test_sizes_use_requested_unit(parts):
    run, printed = parts
    peak = report(run.trace)["devices"][0]["peak"]["live_bytes"]
    for unit, text in [("bytes", f"{peak:,} B"), ("MiB", f"{peak / 2**20:,.2f} MiB"), ("kib", f"{peak / 2**10:,.2f} KiB"),
                       ("GB", f"{peak / 1e9:,.2f} GB")]:
        shown, _ = replay(run.trace, "--peak", "--units", unit)
        assert text in shown
        others = {"KiB", "MiB", "GiB", "MB", "GB"} - {text.split()[1]}
        assert not re.search(rf"\d ({'|'.join(others)})\b", shown), shown
    replay(run.trace, "--units", "furlongs", code=2)
