"""A command gets the same signals under `gpumemtrace run` as without it."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from conftest import COMMAND, LIBRARY

ENVIRONMENT = {"GPUMEMTRACE_LIB": str(LIBRARY), "PATH": "/usr/bin:/bin"}
RUN = [COMMAND, "run", "-o", "run.trace", "--"]
#: Prints each signal that it gets, and ends with the last one.
PRINTS_SIGNALS = """
import signal, sys
numbers = {signals}
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
print("ready", flush=True)
while True:
    number = signal.sigwait(numbers)
    print(int(number), flush=True)
    if number == numbers[-1]:
        sys.exit(7)
"""
ENDING = [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
          signal.SIGXCPU, signal.SIGRTMIN, signal.SIGRTMAX]


@pytest.fixture(autouse=True)
def default_dispositions():
    """A shell that starts the suites in the background, or by nohup, lets them ignore signals."""
    ignored = [number for number in ENDING if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


def ignore_signals():
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


def start(command, folder, **options):
    process = subprocess.Popen(command, cwd=folder, env=ENVIRONMENT,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **options)
    # A signal that is lost must fail the test, not stop it.
    watchdog = threading.Timer(60, lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
    watchdog.daemon = True
    watchdog.start()
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    return process


def send_to_group(process, number):
    subprocess.run(["kill", f"-{int(number)}", "--", f"-{process.pid}"], check=True)


def prints_signals(*numbers):
    return PRINTS_SIGNALS.format(signals=[int(number) for number in numbers])


def expect_end(process, *numbers):
    """The command prints only these now, and ends. `run` passes the last one on after all others."""
    output, errors = process.communicate(timeout=60)
    assert (output.split(), process.returncode) == ([str(int(number)) for number in numbers], 7), errors


@pytest.mark.parametrize("are_ignored", [False, True], ids=["default", "ignored"])
@pytest.mark.parametrize("to_group", [False, True], ids=["process", "group"])
def test_signals_reach_the_command_once(tmp_path, to_group, are_ignored):
    """A command may handle signals that are ignored when it starts."""
    process = start([*RUN, sys.executable, "-c", prints_signals(*ENDING)], tmp_path,
                    preexec_fn=ignore_signals if are_ignored else None)
    for number in ENDING[:-1]:
        if to_group:
            send_to_group(process, number)
        else:
            process.send_signal(number)
        assert process.stdout.readline() == f"{int(number)}\n"
    process.send_signal(ENDING[-1])
    expect_end(process, ENDING[-1])


@pytest.mark.parametrize("times", [1, 2])
def test_signals_of_the_group_reach_the_command_once_when_the_witness_is_late(tmp_path, times):
    process = start([*RUN, sys.executable, "-c", prints_signals(signal.SIGINT, signal.SIGRTMAX)], tmp_path)
    witness = witness_of(process)
    os.kill(witness, signal.SIGSTOP)
    assert settled(lambda: state_of(witness) == "T")
    for _ in range(times):
        send_to_group(process, signal.SIGINT)
        assert process.stdout.readline() == f"{int(signal.SIGINT)}\n"
        # Longer than a signal may take to reach the witness.
        time.sleep(0.05)
    os.kill(witness, signal.SIGCONT)
    process.send_signal(signal.SIGRTMAX)
    expect_end(process, signal.SIGRTMAX)


def test_signals_of_the_group_hide_no_later_ones(tmp_path):
    numbers = (signal.SIGINT, signal.SIGUSR1, signal.SIGRTMAX)
    process = start([*RUN, sys.executable, "-c", prints_signals(*numbers)], tmp_path)
    for to_group in (True, False, True, False):
        if to_group:
            send_to_group(process, signal.SIGINT)
        else:
            process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == f"{int(signal.SIGINT)}\n"
        # Equal signals may become one until `run` has judged the first. This one comes after that.
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == f"{int(signal.SIGUSR1)}\n"
    process.send_signal(signal.SIGRTMAX)
    expect_end(process, signal.SIGRTMAX)


def test_signals_of_a_stopped_group_reach_the_command_once(tmp_path):
    """As after Ctrl-Z, which does not stop the witness. It does stop `run` and the command."""
    process = start([*RUN, sys.executable, "-c", prints_signals(signal.SIGTERM, signal.SIGRTMAX)], tmp_path)
    stopped = [pid for pid, name, _ in processes_in_group(process.pid) if name != "signal-witness"]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    assert settled(lambda: {state_of(pid) for pid in stopped} == {"T"})
    send_to_group(process, signal.SIGTERM)
    send_to_group(process, signal.SIGCONT)
    assert process.stdout.readline() == f"{int(signal.SIGTERM)}\n"
    process.send_signal(signal.SIGRTMAX)
    expect_end(process, signal.SIGRTMAX)


@pytest.mark.parametrize("ignores_pipe", [False, True])
def test_no_signal_of_the_group_is_lost_while_the_command_starts(tmp_path, ignores_pipe):
    """A long PATH makes the start slow. With SIGPIPE ignored, `run` starts it in another way."""
    environment = {**ENVIRONMENT, "PATH": ":".join(["/x"] * 10000 + ["/usr/bin", "/bin"])}
    codes = []
    for delay in range(20):
        process = subprocess.Popen([*RUN, "sleep", "60"], cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL,
                                   start_new_session=True, restore_signals=not ignores_pipe)
        time.sleep(delay * 0.002)
        send_to_group(process, signal.SIGTERM)
        codes.append(process.wait(timeout=30))
    # The first ones end `run` before it starts the command.
    assert set(codes) <= {-signal.SIGTERM, 128 + signal.SIGTERM}, codes


def test_signals_after_the_end_of_the_command_end_run(tmp_path):
    """It waits to write a message, as it would to write a page."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, bytes(4096))
    except BlockingIOError:
        os.set_blocking(writer, True)
    process = subprocess.Popen([*RUN, "echo", "ready"], cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE,
                               stderr=writer, start_new_session=True)
    assert process.stdout.readline() == b"ready\n"
    assert settled(lambda: names_in_group(process.pid) == ["gpumemtrace"])
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == -signal.SIGINT
    os.close(reader)
    os.close(writer)


def test_signal_without_handler_ends_the_command(tmp_path):
    process = start([*RUN, "sh", "-c", "echo ready; exec sleep 60"], tmp_path)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(timeout=30) == 128 + signal.SIGUSR1


def test_command_that_left_the_group_gets_what_the_group_gets(tmp_path):
    code = "import os\nos.setpgid(0, 0)\n" + prints_signals(signal.SIGTERM, signal.SIGRTMAX)
    process = start([*RUN, sys.executable, "-c", code], tmp_path)
    send_to_group(process, signal.SIGTERM)
    assert process.stdout.readline() == f"{int(signal.SIGTERM)}\n"
    process.send_signal(signal.SIGRTMAX)
    expect_end(process, signal.SIGRTMAX)


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


def processes_in_group(group):
    """Those that have not ended: their ID, name and state."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, fields = (folder / "comm").read_text().strip(), (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        # A process that has ended may wait for its parent.
        if int(fields[2]) == group and fields[0] != "Z":
            found.append((int(folder.name), name, fields[0]))
    return found


def names_in_group(group):
    return [name for _, name, _ in processes_in_group(group)]


def witness_of(process):
    return next(pid for pid, name, _ in processes_in_group(process.pid) if name == "signal-witness")


def state_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def settled(condition):
    """True once the condition holds; false after ten seconds."""
    for _ in range(1000):
        if condition():
            return True
        time.sleep(0.01)
    return False
