"""One run of a program under a recorder: what it cost, in itself and beside it.

Constraint: part of a recorder's work is done by other threads, by processes of its own, and after the program is done. Consequence: what
is measured is the CPU of the whole tree of processes from the program's loop on, and of it what the program's own threads took in that
loop; what the helpers took before is removed by the same run without any work.
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
    """The program or its recorder did not do its work."""


@dataclass
class Tally:
    """What the program itself counted (workload.c)."""

    pid: int
    events: int
    #: CPU of its process when its loop began, and of its own threads within.
    begin_ns: int
    own_ns: int
    peak_bytes: int


@dataclass
class Run:
    """A program that has ended, and what it cost."""

    tally: Tally
    #: CPU that is not of the program's loop: recorder's threads and processes, and what comes after the loop.
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
    """Without anything of the caller's that would change a result."""
    return {key: value for key, value in os.environ.items()
            if not key.startswith(("GPUMEMTRACE_", "SIMGPU_", "PYTORCH_", "PYTHON", "LD_"))}


def run(command, folder, env, limit_bytes=None, kill_at_events=None, timeout_seconds=300):
    """Runs `command` to its end; with `kill_at_events`, sends SIGKILL to the program once it has counted so many."""
    tally = TallyFile(folder / "tally")

    def limit():
        if limit_bytes:
            resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))

    with tempfile.TemporaryFile() as output:
        # A group of its own, so that a run that hangs can be ended with all its helpers.
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
        said = output.read().decode(errors="replace").strip()
    now = tally.read()
    if not now.pid or not (killed or now.peak_bytes):
        raise Failed(f"{said[-500:]} (exit code {process.returncode})")
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
    """CPU of commands that read what was recorded."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for command in commands:
        with open(os.devnull, "w") as nothing, tempfile.TemporaryFile() as errors:
            done = subprocess.run(command, cwd=folder, env=clean_environment() | env, stdout=nothing, stderr=errors, timeout=300)
            if done.returncode:
                errors.seek(0)
                raise Failed(f"{command[0]}: {errors.read().decode(errors='replace').strip()[-300:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
