"""Runs one program and returns all that can be observed of it from outside."""

import hashlib
import os
import re
import signal
import stat
import struct
import subprocess
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from conftest import environment

#: A program that is not done by then hangs.
SECONDS = 120
#: The four counters of tests/host/driver.c.
COUNTS = struct.Struct("=4Q")


@dataclass
class Observation:
    """What a program printed, left behind and how it ended."""

    ending: str
    output: list
    errors: list
    files: dict
    processes: list
    place: Path
    #: Per process: (allocations begun, allocations, frees begun, frees).
    counts: dict = field(default_factory=dict)


def describe_ending(status):
    if status is None:
        return f"did not end within {SECONDS} s"
    core = " (core dumped)" if os.WCOREDUMP(status) else ""
    return f"signal {os.WTERMSIG(status)}{core}" if os.WIFSIGNALED(status) else f"exit code {os.WEXITSTATUS(status)}"


def marked_processes(mark):
    """Returns (pid, name) of running processes that inherited the environment variable."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append((int(folder.name), (folder / "comm").read_text().strip()))
        except OSError:
            pass
    return found


def processes_that_stay(mark):
    """Returns the processes that the program left behind, once none has run for a second."""
    seen, since = None, 0
    while (left := marked_processes(mark)) and (seen is None or time.monotonic() - since < 1):
        now = [(pid, read_switches(pid)) for pid, _ in left]
        if now != seen or any(is_running for _, (_, is_running) in now):
            seen, since = now, time.monotonic()
        time.sleep(0.02)
    return left


def read_switches(pid):
    """Returns how often a process has slept, and whether it can run now."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None, True
    return re.findall(r"ctxt_switches:\s+(\d+)", status), re.search(r"^State:\s+[RD]", status, re.M) is not None


def describe_file(path):
    try:
        return describe(path)
    except OSError as error:
        return error.strerror


def describe(path):
    data = path.lstat()
    content = path.read_bytes() if stat.S_ISREG(data.st_mode) else os.readlink(path).encode() if path.is_symlink() else b""
    digest = hashlib.sha256(content).hexdigest()[:16]
    return f"mode={data.st_mode:o} owner={data.st_uid}:{data.st_gid} size={len(content)} sha256={digest}"


def observe_run(command, place, folder, preload=None, **variables):
    """Runs a command in `place`. `folder` takes the driver's counts."""
    counts = folder / "counts"
    counts.mkdir()
    counts.chmod(0o1777)
    mark = f"HOST_RUN={uuid.uuid4()}"
    env = environment(folder, traced=False, HOST_COUNTS=counts, HOST_RUN=mark.partition("=")[2], **variables)
    env.pop("SIMGPU_LOG")
    if preload:
        env["LD_PRELOAD"] = str(preload)
    # Not subprocess.communicate alone: only wait4 tells of a core dump.
    with open(folder / "stdout", "w+b") as output, open(folder / "stderr", "w+b") as errors:
        reader, writer = os.pipe()
        pumps = [subprocess.Popen(["cat"], stdin=reader, stdout=output)]
        os.close(reader)
        error_reader, error_writer = os.pipe()
        pumps.append(subprocess.Popen(["cat"], stdin=error_reader, stdout=errors))
        os.close(error_reader)
        process = subprocess.Popen([*map(str, command)], cwd=place, env=env, stdin=subprocess.DEVNULL, stdout=writer,
                                   stderr=error_writer, start_new_session=True)
        os.close(writer)
        os.close(error_writer)
        status = wait_for_end(process, SECONDS)
        left = processes_that_stay(mark)
        for pid, _ in left:
            os.kill(pid, signal.SIGKILL)
        if status is None:
            os.killpg(process.pid, signal.SIGKILL)
        if status is None:
            wait_for_end(process, 5)
        for pump in pumps:
            pump.wait(timeout=10)
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read().decode(errors="replace").splitlines())
    files = {str(path.relative_to(place)): describe_file(path) for path in sorted(place.rglob("*"))} if place.is_dir() else {}
    return Observation(describe_ending(status), *texts, files, [name for _, name in left], place,
                       {int(path.stem): COUNTS.unpack(path.read_bytes()) for path in counts.iterdir()})


def wait_for_end(process, seconds):
    """Returns the wait status, or None if the process still runs."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pid, status, _ = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = status
            return status
        time.sleep(0.005)
    return None
