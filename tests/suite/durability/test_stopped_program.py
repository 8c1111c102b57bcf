"""Commands that read the trace of a stopped program return soon, and say what is missing."""

import json
import os
import signal
import subprocess
import time

import pytest

from conftest import COMMAND, gpumemtrace, sentences
from rotation_runs import start

ANSWER_SECONDS = 15
# The kernel takes a lease away after this many seconds. It must exceed what the test allows.
LEASE_BREAK_SECONDS = int(open("/proc/sys/fs/lease-break-time").read())

COMMANDS = {
    "replay": ["replay", "run.trace"],
    "info": ["info", "run.trace"],
    "verify": ["info", "--verify", "run.trace"],
    "dump": ["dump", "run.trace"],
    "html": ["html", "run.trace", "-o", "page.html"],
    "compare": ["compare", "run.trace", "run.trace"],
    "leak_candidates": ["leak-candidates", "run.trace"],
}


def has_lease(process):
    return any(line.split()[1] == "LEASE" and line.split()[4] == str(process.pid)
               for line in open("/proc/locks") if "->" not in line)


@pytest.fixture
def stopped(tmp_path):
    """A program that records without end and is stopped; its lease is active."""
    assert LEASE_BREAK_SECONDS > ANSWER_SECONDS
    with start(tmp_path, 0) as process:
        try:
            deadline = time.monotonic() + 60
            while not ((tmp_path / "run.trace").exists() and has_lease(process)):
                assert time.monotonic() < deadline and process.poll() is None, process.stderr.read()
                time.sleep(0.05)
            time.sleep(0.5)
            os.kill(process.pid, signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            yield process, tmp_path
        finally:
            process.kill()


def read(folder, arguments):
    """Runs a command that must not wait for the kernel to take the lease away."""
    done = subprocess.run([COMMAND, *arguments], cwd=folder, capture_output=True, text=True, timeout=ANSWER_SECONDS)
    assert done.returncode == 6, done.stdout[-1000:] + done.stderr
    return sentences((folder / "page.html").read_text() if arguments[0] == "html" else done.stdout)


def test_ring_of_a_stopped_program_is_left_alone(stopped):
    process, folder = stopped
    for arguments in COMMANDS.values():
        shown = read(folder, arguments)
        assert f"the program (process {process.pid}) does not answer" in shown
        assert "continue the program and run this again" in shown
    # Nothing was opened: the lease still protects the program.
    assert any("ACTIVE" in line and f" {process.pid} " in line for line in open("/proc/locks") if "LEASE" in line)
    os.kill(process.pid, signal.SIGCONT)
    deadline = time.monotonic() + 30
    while True:
        traces = json.loads(subprocess.run([COMMAND, "replay", "--json", folder / "run.trace"],
                                           capture_output=True, text=True, timeout=60).stdout)["traces"]
        if traces[0]["complete"]:
            break
        assert time.monotonic() < deadline, traces[0]["incomplete"]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert "complete: yes" in gpumemtrace("info", "--verify", folder / "run.trace")


def test_stopped_program_of_another_namespace_delays_a_reader_for_seconds(stopped):
    """There the reader does not see the process, and has to try."""
    process, folder = stopped
    command = ["unshare", "--pid", "--fork", "--mount-proc", COMMAND, "replay", "run.trace"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=ANSWER_SECONDS)
    assert done.returncode == 6, done.stdout + done.stderr
    shown = sentences(done.stdout)
    assert "the program does not answer" in shown
    os.kill(process.pid, signal.SIGCONT)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert "complete: yes" in gpumemtrace("info", "--verify", folder / "run.trace")


def test_follow_says_once_that_the_program_does_not_answer(stopped):
    process, folder = stopped
    follow = subprocess.Popen([COMMAND, "replay", "--follow", "run.trace"], cwd=folder, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with follow:
        time.sleep(4)
        os.kill(process.pid, signal.SIGCONT)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        report, messages = follow.communicate(timeout=60)
    assert messages.count("does not answer") == 1
    assert follow.returncode == 0 and "trace complete" in report, report + messages
