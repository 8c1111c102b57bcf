"""A program that is stopped for long (SIGSTOP, a debugger, a frozen cgroup) goes on as it does
untraced, also if another process truncates its ring file meanwhile.

The stops last a moment. The program's clock then shows an hour more (clock_offset.c), and the
kernel takes its lease away after a second.
"""

import contextlib
import ctypes
import os
import re
import signal
import threading
from pathlib import Path

import pytest

from conftest import gpumemtrace
from durability_case import Case, build_programs, lease_break_seconds, lease_state, naps, skip_or_fail, wait_for_lease, wait_for_naps, wait_until

FREEZERS = [(Path("/sys/fs/cgroup/freezer"), "freezer.state", "FROZEN", "THAWED", ("freezer.state", "FROZEN")),
            (Path("/sys/fs/cgroup"), "cgroup.freeze", "1", "0", ("cgroup.events", "frozen 1"))]
WAIT_ALL = 0x40000000  # __WALL
PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17


@pytest.fixture(scope="module")
def bin(tmp_path_factory):
    return build_programs(tmp_path_factory.mktemp("bin"), ["process_ends", "slow_writer.so", "clock_offset.so"])


@pytest.fixture
def case(tmp_path, bin):
    return lambda name="traced": Case(tmp_path / name, bin)


# Ways to stop a program; each is a context in which it is stopped.

@contextlib.contextmanager
def stopped_by_signal(pid):
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    yield
    os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def stopped_by_debugger(pid):
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    threads = [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]
    for thread in threads:
        assert ptrace(PTRACE_SEIZE, thread, None, None) == 0, os.strerror(ctypes.get_errno())
        assert ptrace(PTRACE_INTERRUPT, thread, None, None) == 0
        os.waitpid(thread, WAIT_ALL)
    yield
    for thread in threads:
        if ptrace(PTRACE_DETACH, thread, None, None) != 0:
            os.waitpid(thread, WAIT_ALL)  # The program died, and its parent waits for the debugger.


@contextlib.contextmanager
def stopped_by_freezer(pid):
    for root, file, frozen, thawed, (state, word) in FREEZERS:
        group = root / f"gpumemtrace-test-{pid}"
        with contextlib.suppress(OSError):
            group.mkdir()
            (group / "cgroup.procs").write_text(str(pid))
            (group / file).write_text(frozen)
            wait_until(lambda: word in (group / state).read_text(), "the freezer")
            break
    else:
        skip_or_fail("no cgroup can be frozen")
    yield
    (group / file).write_text(thawed)
    (root / "cgroup.procs").write_text(str(pid))
    group.rmdir()


# What another process does to the ring file meanwhile.

def truncate(ring):
    os.truncate(ring, 0)


def replace_content(ring):
    ring.write_bytes(b"something else" * 10_000_000)


def shrink(ring):
    os.truncate(ring, 8192)


def read(ring):
    assert ring.read_bytes()


def hold_open(ring):
    os.open(ring, os.O_WRONLY)


def open_against_lease(change, traced, pid):
    """Changes the ring file as soon as the kernel has taken the lease away."""
    opener = threading.Thread(target=change, args=[traced.ring])
    with lease_break_seconds(1):
        opener.start()
        wait_until(lambda: lease_state(pid) == "BREAKING" or not opener.is_alive(), "the kernel to break the lease")
    opener.join()


TROUBLE = {  # the way to stop, what happens meanwhile, the line on stderr
    "truncated": (stopped_by_signal, truncate, "truncated"),
    "truncated_under_debugger": (stopped_by_debugger, truncate, "truncated"),
    "truncated_while_frozen": (stopped_by_freezer, truncate, "truncated"),
    "replaced": (stopped_by_signal, replace_content, "truncated"),
    "shrunk": (stopped_by_signal, shrink, "truncated"),
    "held_open": (stopped_by_signal, hold_open, "open for writing"),
    "read": (stopped_by_signal, read, None),
    "left_alone": (stopped_by_signal, None, None),
}


def test_long_stop(case, bin):
    """All at the same time, because each waits for the kernel."""
    results = {}

    def run(name):
        how, meanwhile, _ = TROUBLE[name]
        traced = case(name)
        with traced.start(bin / "process_ends", "now_and_then", own_clock=True) as process:
            assert process.stdout.readline() == "begun\n"
            wait_for_lease(process.pid)
            with how(process.pid):
                if meanwhile:
                    open_against_lease(meanwhile, traced, process.pid)
                traced.clock.pass_an_hour()
            try:
                traced.output, traced.printed = process.communicate("\n", timeout=60)
            finally:
                process.kill()
            traced.code = process.returncode
        results[name] = traced

    threads = [threading.Thread(target=run, args=[name]) for name in TROUBLE]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(results) == set(TROUBLE)
    for name, (_, _, line) in TROUBLE.items():
        traced = results[name]
        assert (traced.code, traced.output) == (0, "done\n"), (name, traced.code, traced.printed)
        if line is None:
            assert traced.printed == "", name
            traced.check_all_there("exit")
        elif line == "open for writing":
            assert len(traced.lines()) == 1 and line in traced.printed, (name, traced.printed)
            traced.check_all_there("exit")
        else:
            assert len(traced.lines()) == 1 and line in traced.printed, (name, traced.printed)
            facts = traced.check_loss_is_reported()
            assert "truncated" in str(facts["incomplete"]), (name, facts["incomplete"])
            assert sum(facts["events"].values()) >= 0


def test_closed_descriptors_and_lost_lease(case, bin):
    """The recorder cannot open its ring file again before the kernel has ended its own lease."""
    traced = case()
    with traced.start(bin / "process_ends", "closes_all_and_waits") as process:
        assert [process.stdout.readline() for _ in range(2)] == ["worked\n", "ready\n"]
        wait_for_lease(process.pid)
        with lease_break_seconds(1):
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "closed\n"
            wait_until(lambda: lease_state(process.pid) != "ACTIVE", "the recorder to open its ring file")
        wait_until(lambda: not lease_state(process.pid), "the kernel to end the lease")
        traced.output, traced.printed = process.communicate("\n", timeout=60)
    assert (process.returncode, traced.output) == (0, "done\n")
    assert len(traced.lines()) == 1 and "closed the descriptor of its ring file" in traced.printed
    facts = traced.facts()
    assert facts["complete"] and facts["events"]["device_alloc"] == 4 * 200 + 5000


def test_stopped_time_does_not_count_as_waiting(case, bin):
    """Threads wait for space in their rings while the process is stopped for longer than they would
    wait."""
    traced = case()
    gate = traced.folder / "no writes"
    with traced.start(bin / "process_ends", "forever", preload=[bin / "slow_writer.so"], own_clock=True,
                      WRITES_WAIT_WHILE=gate, GPUMEMTRACE_MEMORY="32M") as process:
        assert process.stdout.readline() == "begun\n"
        gate.touch()
        in_storm = lambda thread, name: thread != process.pid and not name.startswith("gpumemtrace")
        # The recorder's thread names itself after it has started.
        wait_until(lambda: len(naps(process.pid, in_storm)) == 4, "four threads beside the recorder's")
        wait_until_waiting(process.pid, in_storm, traced.folder / "driver.log")
        with stopped_by_signal(process.pid):
            traced.clock.pass_an_hour()
        # Each thread looks at the clock.
        wait_for_naps(process.pid, 3, in_storm)
        gate.unlink()
        traced.output, traced.printed = process.communicate("\n", timeout=60)
        traced.code = process.returncode
    assert (traced.code, traced.printed) == (0, "")
    traced.check_all_there("exit")
    waits = re.search(r"ring_waits: (\d+)", gpumemtrace("info", traced.trace))
    assert int(waits[1]) >= 4, "all four threads waited"


def wait_until_waiting(pid, threads, log):
    """Waits until each thread naps, and none calls the driver."""
    size = -1
    while size != (size := log.stat().st_size):
        wait_for_naps(pid, 5, threads)
