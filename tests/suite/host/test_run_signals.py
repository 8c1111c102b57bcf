"""A command gets the same signals under `gpumemtrace run` as without it."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import COMMAND, LIBRARY

ENVIRONMENT = {"GPUMEMTRACE_LIB": str(LIBRARY), "PATH": "/usr/bin:/bin"}
RUN = [COMMAND, "run", "-o", "run.trace", "--"]
#: Ends after a while without signals, and prints those that it got.
NOTES_SIGNALS = """
import signal, sys, time
seen, last = [], time.monotonic()
def note(number, _):
    global last
    seen.append(number)
    last = time.monotonic()
for number in {signals}:
    signal.signal(number, note)
print("ready", flush=True)
while time.monotonic() - last < 1:
    time.sleep(0.02)
print(sorted(seen))
sys.exit(7)
"""
ENDING = [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
          signal.SIGXCPU, signal.SIGRTMIN, signal.SIGRTMAX]


def start(command, folder, **options):
    process = subprocess.Popen(command, cwd=folder, env=ENVIRONMENT,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **options)
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    return process


@pytest.mark.parametrize("to_group", [False, True], ids=["process", "group"])
def test_signals_reach_the_command_once(tmp_path, to_group):
    code = NOTES_SIGNALS.format(signals=[int(number) for number in ENDING])
    process = start([*RUN, sys.executable, "-c", code], tmp_path)
    for number in ENDING:
        if to_group:
            subprocess.run(["kill", f"-{int(number)}", "--", f"-{process.pid}"], check=True)
        else:
            process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert (output, process.returncode) == (f"{sorted(int(number) for number in ENDING)}\n", 7), errors


def test_signal_without_handler_ends_the_command(tmp_path):
    process = start([*RUN, "sh", "-c", "echo ready; exec sleep 60"], tmp_path)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(timeout=30) == 128 + signal.SIGUSR1


def test_command_that_left_the_group_gets_what_the_group_gets(tmp_path):
    code = "import os\nos.setpgid(0, 0)\n" + NOTES_SIGNALS.format(signals=[int(signal.SIGTERM)])
    process = start([*RUN, sys.executable, "-c", code], tmp_path)
    subprocess.run(["kill", "-TERM", "--", f"-{process.pid}"], check=True)
    output, errors = process.communicate(timeout=60)
    assert (output, process.returncode) == (f"[{int(signal.SIGTERM)}]\n", 7), errors


@pytest.mark.parametrize("ignored", [[signal.SIGHUP], [signal.SIGPIPE], [signal.SIGINT, signal.SIGQUIT], []])
def test_ignored_signals_stay_ignored(tmp_path, ignored):
    """As with nohup, systemd's IgnoreSIGPIPE=, and commands that a shell starts in the background."""

    def ignore():
        for number in (signal.SIGHUP, signal.SIGPIPE, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])

    # The C library ignores its own two signals in a process that posix_spawn starts.
    code = """
for line in open("/proc/self/status"):
    name, _, value = line.partition(":")
    if name in ("SigIgn", "SigBlk"):
        print(name, hex(int(value, 16) & ~0x180000000))
"""
    runs = [subprocess.run([*run, sys.executable, "-c", code], cwd=tmp_path, env=ENVIRONMENT, preexec_fn=ignore,
                           restore_signals=False, capture_output=True, text=True, timeout=60) for run in ([], RUN)]
    assert runs[0].stdout.count("\n") == 2 and runs[0].stdout == runs[1].stdout, runs


def test_command_dies_with_a_parent_that_asked_for_it(tmp_path):
    """As the workers of launchers do: SIGKILL cannot be passed on."""
    launcher = f"""
import ctypes, os, signal, subprocess
process = subprocess.Popen({[*map(str, RUN), "sh", "-c", "echo ready; exec sleep 60"]!r},
                           preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL))
process.wait()
"""
    process = start([sys.executable, "-c", launcher], tmp_path)
    group = process.pid
    assert settled(lambda: "sleep" in names_in_group(group))
    process.kill()
    process.wait(timeout=30)
    assert settled(lambda: names_in_group(group) == []), names_in_group(group)


def test_nothing_stays_after_a_kill(tmp_path):
    process = start([*RUN, "sh", "-c", "echo ready; exec sleep 60"], tmp_path)
    group = process.pid
    process.kill()
    process.wait(timeout=30)
    # The command goes on, as that of a shell that is killed.
    assert settled(lambda: names_in_group(group) == ["sleep"]), names_in_group(group)
    subprocess.run(["kill", "-KILL", "--", f"-{group}"], check=True)


def names_in_group(group):
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            # A process that has ended may wait for its parent.
            if int(fields[2]) == group and fields[0] != "Z":
                found.append((folder / "comm").read_text().strip())
        except OSError:
            pass
    return found


def settled(condition):
    """True once the condition holds; false after ten seconds."""
    for _ in range(1000):
        if condition():
            return True
        time.sleep(0.01)
    return False
