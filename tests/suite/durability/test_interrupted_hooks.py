"""Threads that are cancelled in a driver call, signal handlers that call the driver, and jumps out
of both.

Each program runs untraced and traced and must behave the same. The driver is a C library without
locks (tests/workloads/driver/c_driver.c), because a program may leave its calls at any moment. Its
log is the oracle: each call is in the trace, or counted as lost, and a trace that lacks one is not
complete.
"""

import itertools
import json
import os
import platform
import shutil
import signal
import subprocess
import threading
from collections import Counter

import pytest

from conftest import COMMAND, WORKLOADS, driver_calls, dump, gpumemtrace
from durability_case import Case, lease_break_seconds, lease_state, skip_or_fail, wait_until

LINE_BYTES = 64
KINDS = {"a": "device_alloc", "f": "device_free"}


def build(folder, *driver_options):
    c, cpp = (shutil.which(name) or skip_or_fail(f"there is no {name}") for name in ("cc", "c++"))
    source = WORKLOADS / "driver"
    subprocess.run([c, "-O1", "-g", "-Wall", "-Werror", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", *driver_options,
                    "-o", folder / "libcuda.so.1", source / "c_driver.c"], check=True)
    subprocess.run([cpp, "-std=c++17", "-O1", "-g", "-Wall", "-Werror", "-rdynamic", "-o", folder / "interrupted_hooks", source / "interrupted_hooks.cpp",
                    f"-L{folder}", "-l:libcuda.so.1", f"-Wl,-rpath,{folder}", "-lpthread", "-ldl"], check=True)
    for name in ("slow_writer", "clock_offset"):
        subprocess.run([c, "-O1", "-g", "-Wall", "-Werror", "-shared", "-fPIC", "-o", folder / f"{name}.so", source / f"{name}.c", "-ldl"],
                       check=True)
    return folder


@pytest.fixture(scope="module")
def bin(tmp_path_factory):
    return build(tmp_path_factory.mktemp("bin"))


def read_report(trace):
    done = subprocess.run([COMMAND, "replay", trace, "--json"], capture_output=True, text=True)
    assert done.returncode in (0, 6), done.stderr
    return json.loads(done.stdout)["traces"][0]


class Comparison:
    """The trace of a run beside the driver's log."""

    def __init__(self, traced):
        self.printed = traced.lines()
        with open(traced.folder / "driver.log", "rb") as log:
            count = int.from_bytes(log.read(LINE_BYTES)[:8], "little")
            text = log.read(count * LINE_BYTES)
        # A jump may leave a line unfinished. Its call has no address, and is not compared.
        lines = [text[at:at + LINE_BYTES].split() for at in range(0, len(text), LINE_BYTES) if text[at + LINE_BYTES - 1:at + LINE_BYTES] == b"\n"]
        self.logged = Counter((int(tid), KINDS[kind.decode()], int(addr)) for tid, kind, addr in lines)
        self.facts = read_report(traced.trace)
        info = gpumemtrace("info", traced.trace, code=None)
        self.counters = dict(line.split("counter ")[1].split(": ") for line in info.splitlines() if "recorder counter" in line)
        events = [event for event in driver_calls(dump(traced.trace, code=None)) if event["kind"] in KINDS.values()]
        self.returned = Counter((event["tid"], event["kind"], event["addr"]) for event in events if not event["in_flight"])
        self.in_flight = sum(event["in_flight"] for event in events)
        self.missing = sum((self.logged - self.returned).values())
        assert not self.returned - self.logged, "the trace has calls that the program has not made"

    def lost(self, *kinds):
        losses = {loss["kind"]: loss.get("events", loss.get("threads")) for loss in self.facts["incomplete"]}
        assert set(losses) <= set(kinds), losses
        assert self.facts["complete"] == (not losses)
        return losses

    def check_all_recorded(self, in_flight=0):
        """Each logged call is in the trace, and all but some have returned."""
        assert not self.printed
        self.check_calls(in_flight)

    def check_calls(self, in_flight):
        assert not self.lost()
        assert (self.missing, self.in_flight) == (in_flight, in_flight)


@pytest.fixture
def run(tmp_path, bin):
    runs = itertools.count()

    def run_both(way, count=0, **extra):
        """Runs a way untraced and traced, and compares what the program sees of both."""
        folder = tmp_path / str(next(runs))
        alone, traced = (Case(folder / kind, bin).run(bin / "interrupted_hooks", way, count, traced=kind == "traced", **extra)
                         for kind in ("alone", "traced"))
        assert (traced.code, traced.output) == (alone.code, alone.output)
        assert traced.code in (0, 3, 7) and "failed" not in traced.output
        return traced

    return run_both


# Threads that are cancelled, or that leave a call by unwinding. A pending cancellation acts at the
# first cancellation point.

@pytest.mark.parametrize("way", ["cancel_at_start", "cancel_at_lookup", "cancel_at_exit"])
def test_pending_cancellation_does_not_act_in_the_recorder(run, way):
    Comparison(run(way)).check_all_recorded()


def test_pending_cancellation_does_not_act_in_a_wait_for_ring_space(run, bin):
    compared = Comparison(run("cancel_in_storm", 10_000, preload=[bin / "slow_writer.so"], GPUMEMTRACE_MEMORY="32MiB"))
    compared.check_all_recorded()
    assert int(compared.counters["ring_waits"]) > 0, "no thread has waited"


def test_pending_cancellation_does_not_act_while_recording_is_paused(tmp_path, bin):
    """Another process that opens the ring file for writing pauses the recording."""
    case = Case(tmp_path, bin)
    with case.start(bin / "interrupted_hooks", "cancel_in_storm", 200_000) as process:
        while not case.ring.exists():
            assert process.poll() is None
        with open(case.ring, "r+b"):
            pass
        output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "thread: cancelled, cleanups 1\n")


def test_pending_cancellation_does_not_act_in_a_message(tmp_path, run):
    traced = run("cancel_at_start", GPUMEMTRACE_OUTPUT=tmp_path / "missing" / "run.trace")
    assert len(traced.lines()) == 1 and "No such file or directory" in traced.printed
    compared = Comparison(run("cancel_new_threads"))
    losses = compared.lost("dropped_events", "threads_without_ring")
    assert len(compared.printed) == 1 and losses["threads_without_ring"] > 0
    assert compared.missing == losses["dropped_events"]


@pytest.mark.parametrize("way, calls", [("cancel_in_driver", 1), ("cancel_blocked", 1), ("exit_in_driver", 1), ("throw_in_driver", 10)])
def test_call_that_unwinds_stays_in_flight_and_cleanups_are_recorded(run, way, calls):
    Comparison(run(way)).check_all_recorded(in_flight=calls)


def test_call_that_unwinds_after_a_long_stop_does_not_block_the_ring(tmp_path, bin):
    """The hook may not touch the ring file at first: another process is about to open it."""
    case = Case(tmp_path, bin)
    # On one processor, the program decides which of its threads runs first.
    processor = min(os.sched_getaffinity(0))
    with lease_break_seconds(), case.start(
            bin / "interrupted_hooks", "throw_after_stop", 40_000, own_clock=True, GPUMEMTRACE_MEMORY="32MiB",
            before=lambda: os.sched_setaffinity(0, {processor})) as process:
        try:
            os.waitpid(process.pid, os.WUNTRACED)
            opener = threading.Thread(target=lambda: open(case.ring, "r+b").close())
            opener.start()
            wait_until(lambda: lease_state(process.pid) == "BREAKING", "the other process to wait")
            # No earlier check of the lease is valid any more.
            case.clock.pass_an_hour()
            process.send_signal(signal.SIGCONT)
            case.output, case.printed = process.communicate(timeout=60)
        finally:
            process.kill()
        opener.join()
    assert process.returncode == 0
    Comparison(case).check_calls(in_flight=1)


# Signal handlers that call the driver.

@pytest.mark.parametrize("way", ["handler_in_driver", "handler_in_driver_other_stack", "nested_handlers"])
def test_calls_of_a_handler_that_interrupted_the_driver_are_recorded(run, way):
    compared = Comparison(run(way, 100))
    compared.check_all_recorded()
    assert sum(compared.logged.values()) >= 2 * 13


def test_handler_does_not_wait_for_ring_space_behind_the_interrupted_call(run):
    compared = Comparison(run("long_handler_in_driver", 40_000, GPUMEMTRACE_MEMORY="32MiB"))
    assert compared.missing == compared.lost("dropped_events")["dropped_events"] > 0


@pytest.mark.skipif(platform.machine() != "x86_64", reason="steps are those of x86-64")
@pytest.mark.parametrize("way", ["handler_at_each_step", "handler_at_each_step_other_stack"])
def test_calls_of_a_handler_that_interrupted_the_recorder_are_counted(run, way):
    compared = Comparison(run(way))
    assert compared.missing == compared.lost("interrupted_events")["interrupted_events"] > 0
    assert compared.in_flight == 0


@pytest.mark.parametrize("way", ["handler_storm", "handler_storm_other_stack"])
def test_signals_of_another_thread_lose_no_call_silently(run, way):
    compared = Comparison(run(way, 1000))
    assert (compared.missing, compared.in_flight) == (compared.lost("interrupted_events").get("interrupted_events", 0), 0)


@pytest.mark.parametrize("way", ["forwarding_call", "forwarding_query"])
def test_calls_that_the_driver_makes_itself_are_no_loss(run, way):
    """A driver may forward to functions that have hooks, also while a hook queries it."""
    compared = Comparison(run(way))
    assert not compared.lost()
    assert compared.missing == int(compared.counters["nested_calls"]) > 0


def test_calls_of_a_driver_without_unwind_tables_are_counted(tmp_path):
    """They may be those of a signal handler."""
    bin = build(tmp_path, "-g0", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables")
    compared = Comparison(Case(tmp_path / "traced", bin).run(bin / "interrupted_hooks", "forwarding_call"))
    assert compared.missing == compared.lost("interrupted_events")["interrupted_events"] == 20


# Signal handlers that jump.

def test_jump_between_handlers_does_not_block_the_ring(run):
    Comparison(run("jump_between_handlers", 40_000, GPUMEMTRACE_MEMORY="32MiB")).check_all_recorded(in_flight=10)


@pytest.mark.parametrize("way", ["jump_from_driver", "jump_from_driver_other_stack"])
def test_recording_goes_on_after_a_jump_out_of_the_driver(run, way):
    Comparison(run(way, 1000)).check_all_recorded(in_flight=10)


@pytest.mark.parametrize("way", ["jump_storm", "jump_storm_other_stack"])
def test_recording_goes_on_after_jumps_at_any_moment(run, way):
    """A jump between the return of the driver and the end of our hook leaves the call in flight.
    A jump after a call took its sequence number leaves a gap. A call that was only announced is in
    flight too, without a line in the log."""
    compared = Comparison(run(way, 100))
    losses = compared.lost("interrupted_events", "missing_events")
    assert compared.missing <= compared.in_flight + sum(losses.values())
    assert compared.in_flight + sum(losses.values()) <= 100, "more than the jumps"
    assert sum(compared.returned.values()) >= 2 * 300, "what follows the last jump is recorded"


# Signal handlers that end the process.

@pytest.mark.parametrize("way", ["exit_in_handler", "_exit_in_handler"])
def test_end_in_a_handler_during_a_storm_leaves_a_complete_trace(run, way):
    """Other threads go on until the process has ended. What they do after the end is not recorded."""
    for count in range(1, 5):
        compared = Comparison(run(way, count))
        assert not compared.lost() and compared.facts["end"] == "exit"
        of_main = [call for call, times in (compared.logged - compared.returned).items() if call[0] == compared.facts["pid"]]
        assert len(of_main) <= 1, "the call that was interrupted"
