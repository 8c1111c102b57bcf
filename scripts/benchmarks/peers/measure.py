"""Runs a program once under a recorder and measures the cost inside and beside the program.

Parts of a recorder run in other threads, in other processes, and after the program. So the figure
is the CPU of the whole process tree from the program's loop on, and separately that of the
program's own threads in the loop. The same run without work gives the helpers' start-up cost, which
is subtracted.
"""

import mmap
import os
import resource
import signal
import struct
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

FIELDS = 5
POLL_SECONDS = 0.02


class Failed(Exception):
    """The program or its recorder failed."""


@dataclass
class Tally:
    """The program's own counts (workload.c)."""

    pid: int
    events: int
    #: CPU of the process at the start of its loop, and of its own threads inside it.
    begin_ns: int
    own_ns: int
    peak_bytes: int


@dataclass
class Run:
    """A finished program and its costs."""

    tally: Tally
    #: CPU outside the program's loop: recorder threads and processes, and work after the loop.
    beside_ns: int
    helper_peak_bytes: int


class TallyFile:
    def __init__(self, path):
        path.write_bytes(bytes(8 * FIELDS))
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8 * FIELDS)

    def read(self):
        return Tally(*struct.unpack(f"{FIELDS}Q", self._map[:]))


def clean_environment():
    """Returns an environment without variables of the caller that would change a result."""
    return {key: value for key, value in os.environ.items()
            if not key.startswith(("GPUMEMTRACE_", "SIMGPU_", "PYTORCH_", "PYTHON", "LD_"))}


def run(command, folder, env, limit_bytes=None, kill_at_events=None, timeout_seconds=300):
    """Runs `command` to its end, or kills it once the program counted `kill_at_events` events."""
    tally = TallyFile(folder / "tally")

    def limit():
        if limit_bytes:
            resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))

    with tempfile.TemporaryFile() as output:
        # A process group, so that a hanging run can be killed with all its helpers.
        process = subprocess.Popen(command, cwd=folder, env=clean_environment() | env, stdout=output, stderr=output,
                                   preexec_fn=limit, start_new_session=True)
        peaks, killed, last_look, begin = {}, False, 0, time.monotonic()
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            now = tally.read()
            if kill_at_events and not killed and now.pid and now.events >= kill_at_events:
                os.kill(now.pid, signal.SIGKILL)
                killed = True
            if time.monotonic() - begin > timeout_seconds:
                os.killpg(process.pid, signal.SIGKILL)
                os.wait4(process.pid, 0)
                raise Failed(f"not done after {timeout_seconds} s")
            if time.monotonic() - last_look > POLL_SECONDS:
                last_look = time.monotonic()
                helpers = {helper: peak_of(helper) for helper in descendants(process.pid) if helper != now.pid}
                peaks = {helper: max(peaks.get(helper, 0), helpers.get(helper, 0)) for helper in {*peaks, *helpers}}
            time.sleep(0.001 if kill_at_events else POLL_SECONDS)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        printed = output.read().decode(errors="replace").strip()
    now = tally.read()
    if not now.pid or not (killed or now.peak_bytes):
        raise Failed(f"{printed[-500:]} (exit code {process.returncode})")
    beside_ns = round((usage.ru_utime + usage.ru_stime) * 1e9) - now.begin_ns - now.own_ns
    return Run(now, beside_ns, sum(peaks.values()))


def descendants(pid):
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in map(int, children):
        yield child
        yield from descendants(child)


def peak_of(pid):
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:")), 0)


def cpu_seconds(commands, folder, env):
    """Returns the CPU seconds of commands that read a recording."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for command in commands:
        with open(os.devnull, "w") as nothing, tempfile.TemporaryFile() as errors:
            done = subprocess.run(command, cwd=folder, env=clean_environment() | env, stdout=nothing, stderr=errors, timeout=300)
            if done.returncode:
                errors.seek(0)
                raise Failed(f"{command[0]}: {errors.read().decode(errors='replace').strip()[-300:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
