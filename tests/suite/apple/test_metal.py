"""Metal's memory under GCC's Objective-C runtime: the macOS hooks on a double of Metal's classes.

The double (tests/metal/metal_double.m) logs what it does, in order; the trace must agree. None of
this has run on a Mac: see docs/mps.md.
"""

import json
import re
import shutil
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from conftest import LIBRARY, dump, gpumemtrace
from metal_runs import GOLDEN, METAL, built, marked_lines, run
from stack_dump import FIELD

#: Builds the library once more, with the hooks.
needs_double = pytest.mark.long


class DoubleLog:
    """The double's log: per thread, each operation and its object, in order per object."""

    def __init__(self, path):
        self.by_thread, self.births, live = defaultdict(list), [], {}
        for line in path.read_text().splitlines():
            what, fields = line.split(" ", 1)
            fields = dict(part.split("=", 1) for part in fields.split())
            thread, name = int(fields["tid"]), fields["object"]
            a, b, c = (int(fields[letter]) for letter in "abc")
            if what in ("direct", "heap", "block", "import"):
                assert name not in live
                live[name] = len(self.births)
                self.births.append(what)
            of = live.pop(name) if what == "end" else live[name]
            self.by_thread[thread].append((what, of, a, b, c))
        self.left = len(live)


def kinds_of(what, place):
    """Returns the kinds of event that one line of the log causes."""
    ends = {"direct": ["device_free"], "heap": ["segment_free", "device_free"], "block": ["block_free"], "import": ["external_destroy"]}
    begins = {"direct": ["device_alloc"], "heap": ["device_alloc", "segment_alloc"], "block": ["block_alloc"],
              "import": ["external_import"], "purgeable": ["purgeable"]}
    return ends[place] if what == "end" else begins[what]


def assert_trace_equals_log(trace, truth):
    """Checks that the trace has exactly the log's operations, per thread, with sizes."""
    events = [event for event in dump(trace) if event["rc"] == 0]
    by_thread = defaultdict(list)
    for event in events:
        by_thread[event["tid"]].append(event)
    assert set(by_thread) == set(truth.by_thread)
    places, later = {}, []
    for thread, lines in truth.by_thread.items():
        told = iter(by_thread[thread])
        for what, of, a, b, c in lines:
            for kind in kinds_of(what, truth.births[of]):
                event = next(told)
                assert event["kind"] == kind, (event, what)
                if what == "end" or what == "purgeable":
                    later.append((event, of))
                if what == "purgeable":
                    assert (event["aux0"], event["aux1"]) == (a, b)
                elif what != "end":
                    assert event["size"] == {"direct": b, "heap": a, "block": b, "import": a}[what]
                    places[of] = event["aux0"] if what == "import" else event["addr"]
                elif kind in ("segment_free", "block_free"):
                    assert event["size"] > 0
        assert next(told, None) is None, "the trace has more events than the log"
    for event, of in later:
        assert places[of] == (event["aux0"] if event["kind"] == "external_destroy" else event["addr"]), (event, of)


def lines_of(trace):
    """Maps each Python node to (file, line) of its innermost frame."""
    frames = {}
    for line in gpumemtrace("dump", trace, "--stacks").splitlines():
        if line.startswith("frame "):
            fields = {key: json.loads(text) if text.startswith('"') else text for key, text in FIELD.findall(line)}
            frames[int(fields["id"])] = (Path(fields["file"]).name, int(fields["line"]))
    return frames


@needs_double
@pytest.mark.parametrize("other", ["", "before", "after"])
def test_every_operation_is_recorded_once_in_order_with_line(tmp_path, other):
    """Covers both devices: classes of the second override inherited methods and call them. One
    buffer changes its class while it lives; another library swizzles the same methods before or
    after us."""
    done = run(tmp_path, sys.executable, METAL / "event_kinds.py", other)
    untraced = tmp_path / "untraced"
    untraced.mkdir()
    assert run(untraced, sys.executable, METAL / "event_kinds.py", other, traced=False).process.stdout == done.process.stdout
    if other:
        assert all(int(calls) > 0 for calls in done.process.stdout.split()), "the other library did not swizzle"
    truth = DoubleLog(tmp_path / "double.log")
    assert truth.left == 2, "only the buffers of foreign memory are live"
    assert_trace_equals_log(done.trace, truth)
    events, frames, comments = done.events(), lines_of(done.trace), marked_lines(METAL / "event_kinds.py")
    called = {"device_alloc": {"direct", "heap", "failed"}, "segment_alloc": {"heap"}, "block_alloc": {"block"},
              "external_import": {"import"}, "purgeable": {"purgeable"}}
    for event in events:
        file, line = frames[event["python"]]
        assert file == "event_kinds.py"
        assert comments[line] in called.get(event["kind"], {"end"}), event
    failed = [event for event in events if event["rc"]]
    assert [event["dev"] for event in failed] == ["0", "0", "1", "1"] and {event["size"] for event in failed} == {0}
    assert {event["dev"] for event in events} == {"0", "1"}


@needs_double
def test_api_names_are_methods_that_the_program_calls(tmp_path):
    done = run(tmp_path, sys.executable, METAL / "event_kinds.py")
    names = re.findall(r' kind=(\S+) api="(-\[MTL[^"]*)"', gpumemtrace("dump", done.trace))
    assert ("device_alloc", "-[MTLDevice newBufferWithBytes:length:options:]") in names, "the outer method is named, not the one it calls"
    assert ("external_import", "-[MTLDevice newBufferWithBytesNoCopy:length:options:deallocator:]") in names
    assert ("device_alloc", "-[MTLDevice newTextureWithDescriptor:]") in names and ("device_free", "-[MTLHeap dealloc]") in names


@needs_double
def test_block_addresses_lie_in_their_heap(tmp_path):
    done = run(tmp_path, sys.executable, METAL / "event_kinds.py")
    heaps, offsets = {}, defaultdict(list)
    for event in done.events():
        if event["kind"] == "segment_alloc":
            heaps[event["addr"]] = event["size"]
        elif event["kind"] == "block_alloc":
            begin, = (at for at, size in heaps.items() if at <= event["addr"] < at + size)
            offsets[begin].append(event["addr"] - begin)
    printed = [int(re.search(r" c=(\d+)", line)[1]) for line in (tmp_path / "double.log").read_text().splitlines() if line.startswith("block")]
    assert [at for each in offsets.values() for at in each] == printed and 4096 in printed


@needs_double
def test_eight_threads_lose_no_event(tmp_path):
    done = run(tmp_path, built()[2], 8, 3000)
    truth = DoubleLog(tmp_path / "double.log")
    assert truth.left == 0 and len(truth.by_thread) == 9 and len(truth.births) > 20_000
    assert_trace_equals_log(done.trace, truth)
    report = done.report()
    trace, = report["traces"]
    assert trace["complete"] and trace["mode"] == ["preload", "metal"] and trace["losses"]["uncovered_calls"] == 0
    assert [device["exit"] for device in report["devices"]] == [{"live_bytes": 0, "reserved_bytes": 0, "device_bytes": 0}] * 2
    wrong = {verdict["kind"] for verdict in report["verdicts"]} & {"total_mismatch", "segment_mismatch", "unmatched_blocks", "incomplete"}
    assert not wrong, report["verdicts"]


def lost_under_valgrind(folder, rounds):
    """Returns leaked bytes and invalid accesses under valgrind."""
    folder.mkdir()
    log = folder / "valgrind.log"
    run(folder, shutil.which("valgrind"), "--leak-check=full", "--errors-for-leak-kinds=none", f"--log-file={log}", built()[2], 2, rounds)
    text = log.read_text()
    assert (folder / "run.trace").exists() and DoubleLog(folder / "double.log").left == 0
    lost = [int(re.search(rf"{kind} lost: ([\d,]+) bytes", text)[1].replace(",", "")) for kind in ("definitely", "indirectly")]
    return sum(lost), int(re.search(r"ERROR SUMMARY: (\d+) errors", text)[1])


@needs_double
def test_hooks_leak_no_memory(tmp_path):
    """GCC's runtime leaks at start and per added method; the loss must not grow with the rounds."""
    if not shutil.which("valgrind"):
        pytest.skip("no valgrind here")
    few, many = (lost_under_valgrind(tmp_path / str(rounds), rounds) for rounds in (300, 1500))
    assert few == many and few[1] == 0 and few[0] < 4096


@needs_double
def test_device_properties_are_recorded(tmp_path):
    devices = run(tmp_path, sys.executable, METAL / "event_kinds.py").report()["devices"]
    assert [(device["name"], device["total_bytes"]) for device in devices] == [("Apple M0 Double", 96 << 30)] * 2


@needs_double
def test_late_start_records_new_objects_only(tmp_path):
    """Objects made after the start are recorded, also in older heaps once their class is known.
    Nothing is invented for older objects."""
    library = built()[0]
    done = run(tmp_path, sys.executable, METAL / "late_start.py", library, traced=False)
    assert done.process.stdout.split() == ["0", "2", "1"]
    frames, lines = lines_of(done.trace), (METAL / "late_start.py").read_text().splitlines()
    made = {lines[frames[event["python"]][1] - 1].split(" = ")[0]: event["size"] for event in done.events()
            if event["kind"] in ("device_alloc", "block_alloc")}
    assert made == {"heap": 4 << 20, "block": 1 << 20, "late_in_old_heap": 1 << 20, "direct": 3 << 20}
    report = done.report("--fragmentation")
    trace, = report["traces"]
    assert trace["mode"] == ["started", "metal"] and report["devices"][0]["exit"] == {"live_bytes": 0, "reserved_bytes": 0, "device_bytes": 0}
    assert any(note["kind"] == "started_by_program" and "missing" in note["message"] for note in trace["notes"])


def test_release_library_contains_no_metal_hooks():
    image = LIBRARY.read_bytes()
    assert b"cuMemAlloc_v2" in image and b"MTL" not in image and b"class_addMethod" not in image


@needs_double
def test_retained_list_is_a_leak_and_fixed_one_is_not(tmp_path):
    done = run(tmp_path, sys.executable, METAL / "retained.py")
    assert_retained_leak(done.report("--leaks"), done.report("--fragmentation"), steps=120)
    mended = tmp_path / "mended"
    mended.mkdir()
    assert run(mended, sys.executable, METAL / "retained.py", "120", "--mended").report("--leaks")["leaks"] == []


def test_golden_trace_of_retained_list():
    """The double made this trace once, with CPython 3.11: retained.py, 120 steps."""
    golden = GOLDEN / "metal-retained.trace"
    report = json.loads(gpumemtrace("replay", golden, "--leaks", "--fragmentation", "--json"))
    assert_retained_leak(report, report, steps=120)
    told = {kind: count for kind, count in report["traces"][0]["events"].items() if count}
    assert told == {"marks": 120, "device_alloc": 126, "device_free": 120, "segment_alloc": 6, "block_alloc": 1470, "block_free": 1440}
    text = " ".join(gpumemtrace("replay", golden, "--leaks", "--fragmentation").split())
    assert "retained.py" in text and "Fragmentation of Metal heaps" in text and "torch.mps.empty_cache()" in text


def assert_retained_leak(leaks, gap, steps):
    """Checks one leak with line and bytes, heaps minus live buffers, and Metal as the source."""
    assert leaks["traces"][0]["mode"] == ["preload", "metal"]
    block, heap = (1 << 20) - 768, 8 << 20
    line, = (number for number, what in marked_lines(METAL / "retained.py").items() if what == "retained")
    found = [leak for leak in leaks["leaks"] if leak["kind"] == "tensors"]
    assert [(Path(leak["site"]["file"]).name, leak["site"]["line"]) for leak in found] == [("retained.py", line)]
    assert (found[0]["period_steps"], found[0]["bytes_per_step"]) == (4, block / 4)
    end = next(moment for moment in gap["fragmentation"] if moment["at"]["why"] == "end")
    kept = steps // 4
    heaps = -(-(kept << 20) // heap)
    assert end["live_bytes"] == kept * block
    assert end["reserved_bytes"] % heap == 0 and end["reserved_bytes"] >= heaps * heap
    assert end["gap_bytes"] == end["reserved_bytes"] - end["live_bytes"]
    assert "unexplained" not in {cause["cause"] for cause in end["causes"]}
