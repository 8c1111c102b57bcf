"""Commands that read the trace of a stopped program return soon, and say what is missing."""

import json
import os
import signal
import subprocess

import pytest

from conftest import COMMAND, gpumemtrace, sentences
from durability_case import lease_break_seconds, lease_state, wait_for_lease, wait_for_naps, wait_until
from rotation_runs import start

COMMANDS = {
    "replay": ["replay", "run.trace"],
    "info": ["info", "run.trace"],
    "verify": ["info", "--verify", "run.trace"],
    "dump": ["dump", "run.trace"],
    "html": ["html", "run.trace", "-o", "page.html"],
    "compare": ["compare", "run.trace", "run.trace"],
    "leak_candidates": ["leak-candidates", "run.trace"],
}


@pytest.fixture
def stopped(tmp_path):
    """A program that records without end and is stopped; its lease is active."""
    with lease_break_seconds(), start(tmp_path, 0) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            wait_for_lease(process.pid)
            os.kill(process.pid, signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            yield process, tmp_path
        finally:
            process.kill()


def read(folder, arguments):
    done = subprocess.run([COMMAND, *arguments], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 6, done.stdout[-1000:] + done.stderr
    return sentences((folder / "page.html").read_text() if arguments[0] == "html" else done.stdout)


def is_complete(trace):
    shown = subprocess.run([COMMAND, "replay", "--json", trace], capture_output=True, text=True, timeout=60).stdout
    return json.loads(shown)["traces"][0]["complete"]


def test_ring_of_a_stopped_program_is_left_alone(stopped):
    process, folder = stopped
    for arguments in COMMANDS.values():
        shown = read(folder, arguments)
        assert f"the program (process {process.pid}) does not answer" in shown
        assert "continue the program and run this again" in shown
    # Nothing was opened: the lease still protects the program.
    assert lease_state(process.pid) == "ACTIVE"
    os.kill(process.pid, signal.SIGCONT)
    wait_until(lambda: is_complete(folder / "run.trace"), "a complete answer")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert "complete: yes" in gpumemtrace("info", "--verify", folder / "run.trace")


def test_stopped_program_of_another_namespace_delays_a_reader_for_seconds(stopped):
    """There the reader does not see the process, and has to try. It does not wait until the kernel
    takes the lease away."""
    process, folder = stopped
    command = ["unshare", "--pid", "--fork", "--mount-proc", COMMAND, "replay", "run.trace"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert lease_state(process.pid) == "BREAKING" and done.returncode == 6, done.stdout + done.stderr
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
        messages = follow.stderr.readline()
        # It looks again, several times.
        wait_for_naps(follow.pid, 5, lambda thread, name: thread == follow.pid)
        os.kill(process.pid, signal.SIGCONT)
        wait_for_naps(follow.pid, 5, lambda thread, name: thread == follow.pid)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        report, rest = follow.communicate(timeout=60)
    messages += rest
    assert messages.count("does not answer") == 1
    assert follow.returncode == 0 and "trace complete" in report, report + messages
