"""Rotated traces replay as one file would, also after a crash or the loss of a part."""

import contextlib
import os
import re
import signal
import sys

import pytest

from conftest import COMMAND, REPOSITORY, dump, gpumemtrace, read_log
from durability_case import Case, build_programs, wait_for_naps, wait_until
from ground_truth import NOT_EVENTS
from rotation_runs import parts, run, start

sys.path.insert(0, str(REPOSITORY / "scripts" / "checks"))

from reliability import oracle  # noqa: E402


def logged(folder):
    return [(call["api"], call["addr"]) for call in read_log(folder / "driver.log") if call["api"] not in NOT_EVENTS]


def traced(trace, code=0):
    return [(event["api"], event["addr"]) for event in dump(trace, code=code)
            if event["kind"] not in ("memory_sample", "primary_retain")]


def memory_calls(calls):
    return [call for call in calls if call[0].startswith("cuMem")]


@pytest.mark.parametrize("limit", ["16KiB", "1s,16KiB"])
def test_rotated_trace_equals_single_file(tmp_path, limit):
    run(tmp_path, GPUMEMTRACE_ROTATE=limit)
    assert len(parts(tmp_path)) >= 2
    assert memory_calls(traced(tmp_path / "run.trace")) == memory_calls(logged(tmp_path))
    for path in [*parts(tmp_path), tmp_path / "run.trace", *tmp_path.glob("run.*.stacks.trace")]:
        assert path.stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "run.trace.ring").exists()
    report = gpumemtrace("replay", tmp_path / "run.trace", "--peak")
    assert "trace complete" in report and "alloc_free.py" in report and "make()" in report
    # A symbolized copy is one file; its index counts all parts.
    gpumemtrace("symbolize", tmp_path / "run.trace", "-o", tmp_path / "copy.trace")
    assert traced(tmp_path / "copy.trace") == traced(tmp_path / "run.trace")


def index_equals_full_read(trace, code=0):
    """Checks that the index of a trace equals a full read of it."""
    summed = gpumemtrace("info", trace, code=code).splitlines()
    assert "from the index" in summed.pop()
    read = gpumemtrace("info", trace, "--verify", code=code).splitlines()
    assert [line.replace("at least ", "") for line in summed] == read
    return read


@pytest.mark.parametrize("limit", ["", "16KiB"], ids=["one", "parts"])
def test_index_equals_full_read(tmp_path, limit):
    run(tmp_path, GPUMEMTRACE_ROTATE=limit)
    assert any("recording closed by: exit" in line for line in index_equals_full_read(tmp_path / "run.trace"))


def trace_bytes(folder):
    # A part may be renamed meanwhile.
    with contextlib.suppress(FileNotFoundError):
        return sum(path.stat().st_size for path in folder.glob("run*.trace"))
    return 0


@pytest.mark.parametrize("limit", ["", "16KiB"], ids=["one", "parts"])
def test_index_equals_full_read_after_kill(tmp_path, limit):
    with start(tmp_path, 0, GPUMEMTRACE_ROTATE=limit) as process:
        process.stdout.readline()
        # The first block of the index comes after 16 blocks of at most 18.5 KiB.
        wait_until(lambda: trace_bytes(tmp_path) >= 300 << 10, "a block of the index")
        process.kill()
    assert any("recording closed by: nothing; the process was killed" in line for line in index_equals_full_read(tmp_path / "run.trace"))


def test_time_limit_rotates(tmp_path):
    case = Case(tmp_path / "run", build_programs(tmp_path, ["process_ends", "clock_offset.so"]))
    with case.start(case.bin / "process_ends", "now_and_then", own_clock=True, GPUMEMTRACE_ROTATE="1h") as process:
        assert process.stdout.readline() == "begun\n"
        for hours in (1, 2):
            case.clock.pass_an_hour()
            wait_until(lambda: len(parts(case.folder)) >= hours, "a part")
        process.communicate("\n")
    assert process.returncode == 0 and len(parts(case.folder)) == 2
    case.check_all_there("exit")


def test_kill_in_any_file_call_of_rotations_loses_no_call(tmp_path):
    """The recorder's thread makes about ten file calls for each part (file_faults.c)."""
    bin = build_programs(tmp_path, ["process_ends", "file_faults.so"])
    most_parts = 0
    for number in range(1, 31):
        case = Case(tmp_path / str(number), bin).run(
            bin / "process_ends", "works", 5000, preload=[bin / "file_faults.so"], SOAK_KILL_AT=number,
            GPUMEMTRACE_ROTATE="2KiB", GPUMEMTRACE_MEMORY="32MiB")
        assert case.code == -signal.SIGKILL
        oracle.compare(COMMAND, case.trace, case.folder / "driver.log", case.pid, torn_write=True)
        most_parts = max(most_parts, len(parts(case.folder)))
    assert most_parts >= 2


def test_oldest_parts_are_dropped_and_reported(tmp_path):
    run(tmp_path, GPUMEMTRACE_MAX_TOTAL_SIZE="128KiB", count=150_000)
    files = [*parts(tmp_path), tmp_path / "run.trace", *tmp_path.glob("run.*.stacks.trace")]
    assert sum(path.stat().st_size for path in files) <= 160 << 10
    first = int(re.search(r"part(\d+)", parts(tmp_path)[0].name)[1])
    assert first > 1
    events = traced(tmp_path / "run.trace", code=6)
    all_calls = memory_calls(logged(tmp_path))
    assert memory_calls(events) == all_calls[len(all_calls) - len(memory_calls(events)):]
    head = gpumemtrace("replay", tmp_path / "run.trace", "--peak", code=6)
    dropped = int(re.search(rf"the oldest {first - 1} parts? with ([\d,]+) events", head)[1].replace(",", ""))
    kept = dump(tmp_path / "run.trace", code=6)
    assert dropped + len(kept) == max(int(event["seq"]) for event in kept) + 1
    assert "missing from the file" not in head and "make()" in head


def test_removed_parts_are_reported(tmp_path):
    run(tmp_path, GPUMEMTRACE_ROTATE="16KiB")
    whole = len(dump(tmp_path / "run.trace"))
    second = parts(tmp_path)[1]
    inside = len(dump(second, code=6))
    second.unlink()
    head = gpumemtrace("replay", tmp_path / "run.trace", code=6)
    assert "1 part from 2 to 2 not found beside this trace" in head
    assert len(dump(tmp_path / "run.trace", code=6)) < whole and inside > 0
    next(tmp_path.glob("run.*.stacks.trace")).unlink()
    assert "the stacks file of this trace" in gpumemtrace("replay", tmp_path / "run.trace", code=6)


def test_damage_names_the_damaged_file(tmp_path):
    run(tmp_path, GPUMEMTRACE_ROTATE="16KiB")
    first = parts(tmp_path)[0]
    bytes_there = bytearray(first.read_bytes())
    at = bytes_there.rindex(b"GMTB\x02") + 100
    bytes_there[at] ^= 1
    first.write_bytes(bytes_there)
    head = gpumemtrace("replay", tmp_path / "run.trace", code=6)
    place, name = re.search(r"damage at byte (\d+) of ([^\s,]+)", head).groups()
    assert name.endswith(first.name) and int(place) == at - 100


def test_later_run_keeps_earlier_parts(tmp_path):
    run(tmp_path, GPUMEMTRACE_ROTATE="16KiB")
    before = traced(tmp_path / "run.trace")
    run(tmp_path, count=2000)
    assert traced(tmp_path / "run.1.trace") == before
    assert len(traced(tmp_path / "run.trace")) < len(before)


def test_recording_continues_if_rotation_fails(tmp_path):
    with start(tmp_path, 0, GPUMEMTRACE_ROTATE="16KiB") as process:
        process.stdout.readline()
        (tmp_path / "run.trace").rename(tmp_path / "elsewhere.trace")
        wait_until(lambda: (tmp_path / "elsewhere.trace").stat().st_size >= 256 << 10, "the trace to grow")
        process.terminate()
        stderr = process.stderr.read()
    assert process.returncode == -signal.SIGTERM
    assert stderr.count("\n") == 1 and "no new part" in stderr and "Recording goes on" in stderr
    assert (tmp_path / "elsewhere.trace").stat().st_size >= 256 << 10


def with_file_changed(folder, what, deed):
    """Applies `deed` to the file matching `what`, and ends the run after the recorder's message."""
    said = ""

    def is_noticed():
        # A change while a new part is made, or just before a write, goes unnoticed.
        for path in folder.glob(what):
            with contextlib.suppress(FileNotFoundError):
                deed(path)
        with contextlib.suppress(BlockingIOError):
            nonlocal said
            said += os.read(process.stderr.fileno(), 1 << 16).decode()
        return re.search("was (removed|truncated)", said) or process.poll() is not None

    with start(folder, 0, GPUMEMTRACE_ROTATE="16KiB") as process:
        try:
            process.stdout.readline()
            wait_until(lambda: len(parts(folder)) >= 2, "parts")
            os.set_blocking(process.stderr.fileno(), False)
            wait_until(is_noticed, "a message")
            wait_for_naps(process.pid, 3)
            process.terminate()
            os.set_blocking(process.stderr.fileno(), True)
            assert process.stderr.read() == "" and process.wait() == -signal.SIGTERM
        finally:
            process.kill()
    return said


@pytest.mark.parametrize("what, least", [("run.trace", 8 << 10), ("run.*.stacks.trace", 100)])
def test_truncation_while_writing_is_reported(tmp_path, what, least):
    def cut(path):
        # A part that was just opened has no data to lose.
        if path.stat().st_size >= least:
            os.truncate(path, 20)
    line = with_file_changed(tmp_path, what, cut)
    assert "was truncated by another program" in line
    head = gpumemtrace("replay", tmp_path / "run.trace", code=6)
    assert "another program truncated the trace" in head and "trace INCOMPLETE" in head


def test_current_part_removed(tmp_path):
    line = with_file_changed(tmp_path, "run.trace", lambda path: path.unlink())
    assert "was removed. The program goes on" in line
    assert not (tmp_path / "run.trace.ring").exists()


def test_stacks_file_removed_while_written(tmp_path):
    line = with_file_changed(tmp_path, "run.*.stacks.trace", lambda path: path.unlink())
    assert ".stacks.trace, which holds the stacks, was removed" in line
    assert "the stacks file of this trace" in gpumemtrace("replay", tmp_path / "run.trace", code=6)
