"""Runs one program in its own folder and compares its trace with the driver's log."""

import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
import time
from collections import defaultdict
from pathlib import Path

import pytest

from conftest import DRIVER, LIBRARY, WORKLOADS, driver_calls, dump, environment, gpumemtrace, read_log
from ground_truth import NOT_EVENTS


def skip_or_fail(what):
    reason = f"not checked: {what} here"
    pytest.fail(reason) if os.environ.get("GPUMEMTRACE_REQUIRE_ALL") else pytest.skip(reason)


def build_programs(folder, names):
    """Builds programs and preloaded libraries of tests/workloads beside the
    simulated driver, which is named libcuda.so.1."""
    shutil.copy(DRIVER, folder / "libcuda.so.1")
    compiler = shutil.which(os.environ.get("CC", "cc")) or skip_or_fail("there is no C compiler")
    for name in names:
        [source] = WORKLOADS.glob(f"*/{name.removesuffix('.so')}.c")
        options = ["-shared", "-fPIC"] if name.endswith(".so") else ["-rdynamic", "-l:libcuda.so.1", "-lpthread"]
        subprocess.run([compiler, "-O1", "-g", "-Wall", "-Werror", "-o", folder / name, source, f"-L{folder}",
                        f"-Wl,-rpath,{folder}", *options, "-ldl"], check=True)
    return folder


def wait_until(check, what, seconds=60):
    """Returns the first true value of `check()`. The deadline is for a hang, not a slow machine."""
    deadline = time.monotonic() + seconds
    while not (value := check()):
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.01)
    return value


LEASE_BREAK_SECONDS = Path("/proc/sys/fs/lease-break-time")
LEASE_BREAK_LOCK = "/tmp/gpumemtrace-lease-break-time.lock"


def lease_state(pid):
    """Returns "ACTIVE" if process `pid` has a lease, "BREAKING" while another process waits for
    it, else None."""
    found = re.search(rf"\d+: LEASE +(\S+) +\S+ {pid} ", Path("/proc/locks").read_text())
    return found and found[1]


def wait_for_lease(pid):
    """Waits until the recorder in process `pid` has a lease on its ring file. Its first block is
    then written."""
    wait_until(lambda: lease_state(pid), "a lease")


@contextlib.contextmanager
def lease_break_seconds(seconds=None):
    """Gives leases that are broken meanwhile so many seconds, or keeps other tests from it. The
    setting is the machine's. Without root it stays as it is."""
    with open(LEASE_BREAK_LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH if seconds is None else fcntl.LOCK_EX)
        before = LEASE_BREAK_SECONDS.read_text()
        if seconds is None:
            yield int(before)
            return
        with contextlib.suppress(PermissionError):
            LEASE_BREAK_SECONDS.write_text(str(seconds))
        try:
            yield seconds
        finally:
            with contextlib.suppress(PermissionError):
                LEASE_BREAK_SECONDS.write_text(before)


def naps(pid, chosen=lambda thread, name: True):
    """Returns per chosen thread how often it has slept. A thread ID of the process or its name
    decides; the recorder's thread is named gpumemtrace."""
    counts = {}
    for folder in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if chosen(int(folder.name), (folder / "comm").read_text().strip()):
                counts[folder.name] = int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", (folder / "status").read_text(), re.M)[1])
    return counts


def wait_for_naps(pid, times, chosen=lambda thread, name: name == "gpumemtrace"):
    """Waits until each chosen thread has slept that often, or has ended. A thread that polls looks
    at everything between two naps."""
    before = naps(pid, chosen)
    has_slept = lambda now: all(now[thread] >= before[thread] + times for thread in before.keys() & now.keys())
    wait_until(lambda: has_slept(naps(pid, chosen)), "naps")


class Clock:
    """The monotonic clock of a program that preloads clock_offset.so."""

    def __init__(self, file):
        file.write_bytes(bytes(8))
        self.file, self.settings = file, {"CLOCK_OFFSET": file, "GPUMEMTRACE_CLOCK": "kernel"}

    def pass_an_hour(self):
        with open(self.file, "r+b") as file:
            offset = int.from_bytes(file.read(8), "little") + 3_600 * 10**9
            os.pwrite(file.fileno(), offset.to_bytes(8, "little"), 0)


class Case:
    """The folder of one run, and the files that the run left there."""

    def __init__(self, folder, bin):
        self.folder, self.bin = folder, bin
        folder.mkdir(parents=True, exist_ok=True)

    def start(self, *command, traced=True, preload=(), before=None, own_clock=False, errors=subprocess.PIPE, **extra):
        if own_clock:
            self.clock = Clock(self.folder.with_suffix(".clock"))
            preload = [self.bin / "clock_offset.so", *preload]
            extra |= self.clock.settings
        env = environment(self.folder, traced, LD_LIBRARY_PATH=self.bin, **extra)
        libraries = [*preload, *([LIBRARY] if traced else [])]
        if libraries:
            env["LD_PRELOAD"] = ":".join(map(str, libraries))
        return subprocess.Popen([*map(str, command)], cwd=self.folder, env=env, text=True, preexec_fn=before,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)

    def run(self, *command, **how):
        process = self.start(*command, **how)
        self.pid = process.pid
        try:
            self.output, self.printed = process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
        self.code = process.returncode
        return self

    @property
    def trace(self):
        return self.folder / "run.trace"

    @property
    def ring(self):
        return self.folder / "run.trace.ring"

    def lines(self):
        """Returns our lines on stderr; the program itself writes none."""
        return [line for line in self.printed.splitlines() if line.startswith("gpumemtrace: ")]

    def facts(self, code=0, trace=None):
        return json.loads(gpumemtrace("replay", trace or self.trace, "--json", code=code))["traces"][0]

    def log(self):
        """Returns the driver's log, without a last line that a kill truncated."""
        path = self.folder / "driver.log"
        text = path.read_text()
        if not text.endswith("\n"):
            path.write_text(text[: text.rfind("\n") + 1])
        return [call for call in read_log(path) if call["api"] not in NOT_EVENTS]

    def missing(self, trace=None, pid=None, code=0):
        """Counts logged calls that the trace lacks. Per thread, the trace's calls must be the
        log's, in order."""
        logged, placed, open_calls = defaultdict(list), defaultdict(list), defaultdict(list)
        for call in self.log():
            if pid in (None, call["pid"]):
                logged[call["tid"]].append((call["api"], call["rc"], call["addr"] if call["rc"] == 0 else None))
        events = dump(trace or self.trace, code=code)
        for event in events:
            if event["in_flight"]:
                open_calls[int(event["tid"])].append(event)
        for event in driver_calls([event for event in events if not event["in_flight"]]):
            placed[event["tid"]].append((event["api"], event["rc"], event["addr"] if event["rc"] == 0 else None))
        missing = 0
        for thread, calls in logged.items():
            # A call that the driver logged but that had not returned is in flight.
            assert len(open_calls[thread]) <= 1
            known = placed.pop(thread, [])
            if known == calls[: len(known)]:
                left = calls[len(known):]
                if left and open_calls[thread] and open_calls[thread][0]["api"] == left[0][0]:
                    left = left[1:]
                missing += len(left)
            else:
                calls = iter(calls)
                assert all(call in calls for call in known), "the trace has calls that the log lacks, or in another order"
                missing += len(logged[thread]) - len(known)
        assert not placed, "threads that are not in the log"
        return missing

    def check_all_there(self, end=None, **which):
        facts = self.facts(trace=which.get("trace"))
        assert facts["complete"], facts["incomplete"]
        assert self.missing(**which) == 0
        if end:
            assert facts["end"] == end
        return facts

    def check_loss_is_reported(self, **which):
        """Checks that the report states the loss at its head."""
        facts = self.facts(code=6, trace=which.get("trace"))
        assert not facts["complete"] and facts["incomplete"]
        head = gpumemtrace("replay", which.get("trace") or self.trace, code=6)
        assert "trace INCOMPLETE" in head
        return facts


@contextlib.contextmanager
def disk(folder, size, *options):
    """Mounts a small tmpfs."""
    folder.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join([f"size={size}", *options]), "none", folder], capture_output=True)
    if mounted.returncode:
        skip_or_fail("a small disk cannot be mounted")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
