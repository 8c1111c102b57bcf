"""Runs one program in its own folder and compares its trace with the driver's log."""

import contextlib
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
    """Builds programs and preloaded libraries of tests/workloads/driver beside the simulated
    driver, which is named libcuda.so.1."""
    shutil.copy(DRIVER, folder / "libcuda.so.1")
    compiler = shutil.which(os.environ.get("CC", "cc")) or skip_or_fail("there is no C compiler")
    for name in names:
        source = WORKLOADS / "driver" / f"{name.removesuffix('.so')}.c"
        options = ["-shared", "-fPIC"] if name.endswith(".so") else ["-l:libcuda.so.1", "-lpthread"]
        subprocess.run([compiler, "-O1", "-g", "-Wall", "-Werror", "-o", folder / name, source, f"-L{folder}",
                        f"-Wl,-rpath,{folder}", *options, "-ldl"], check=True)
    return folder


def wait_for_lease(pid):
    """Waits until the recorder in process `pid` has a lease on its ring file."""
    is_lease = re.compile(rf"\d+: LEASE +\S+ +WRITE {pid} ")
    deadline = time.monotonic() + 30
    while not is_lease.search(Path("/proc/locks").read_text()):
        assert time.monotonic() < deadline, "the recorder takes no lease"
        time.sleep(0.01)


class Case:
    """The folder of one run, and the files that the run left there."""

    def __init__(self, folder, bin):
        self.folder, self.bin = folder, bin
        folder.mkdir(parents=True, exist_ok=True)

    def start(self, *command, traced=True, preload=(), before=None, **extra):
        env = environment(self.folder, traced, LD_LIBRARY_PATH=self.bin, **extra)
        libraries = [*preload, *([LIBRARY] if traced else [])]
        if libraries:
            env["LD_PRELOAD"] = ":".join(map(str, libraries))
        return subprocess.Popen([*map(str, command)], cwd=self.folder, env=env, text=True, preexec_fn=before,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run(self, *command, **how):
        process = self.start(*command, **how)
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
