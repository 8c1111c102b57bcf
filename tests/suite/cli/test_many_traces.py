"""Memory of `replay` and `check` with many traces, and the progress bar, on terminals only."""

import json
import os
import pty
import subprocess

import pytest

from conftest import BUILD, COMMAND

EVENTS = 20_000
FEW, MANY = 20, 200
#: The result of each trace, and what the allocator keeps.
MOST_GROWTH_KIB = 6 << 10


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """A folder with the traces of few ranks, and one with those of many."""
    made = {}
    for ranks in (FEW, MANY):
        folder = made[ranks] = tmp_path_factory.mktemp(f"ranks{ranks}")
        for rank in range(ranks):
            trace = folder / f"run.rank{rank}.trace"
            subprocess.run([BUILD / "examples" / "synthesize", str(EVENTS), trace, "0", str(rank), str(ranks)], check=True)
    return made


def measure(*arguments):
    """The peak resident memory of the command in KiB, and its output."""
    with subprocess.Popen([COMMAND, *map(str, arguments)], stdout=subprocess.PIPE, text=True) as process:
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode in (0, 3), output
    return usage.ru_maxrss, output


@pytest.mark.parametrize("command", ["ranks", "check"])
def test_memory_is_that_of_the_threads(jobs, tmp_path, command):
    budget = tmp_path / "budget.toml"
    subprocess.run([COMMAND, "check", jobs[FEW], "--budget", budget, "--write"], check=True, capture_output=True)
    options = ["--jobs", 2, "--json", *(["--budget", budget] if command == "check" else [])]
    peaks = {}
    for ranks, folder in jobs.items():
        peaks[ranks], output = measure(command, folder, *options)
        assert len(json.loads(output)["traces" if command == "ranks" else "checks"]) == ranks
    assert peaks[MANY] <= peaks[FEW] + MOST_GROWTH_KIB, peaks


def stderr_of(command, terminal):
    """What the command writes to stderr, which is a terminal or a pipe."""
    if not terminal:
        return subprocess.run(command, capture_output=True, check=True, timeout=300).stderr.decode()
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs, env=env) as process:
        os.close(theirs)
        text = b""
        try:
            while part := os.read(ours, 1 << 16):
                text += part
        except OSError:
            pass  # The terminal is closed.
        os.close(ours)
    assert process.returncode == 0
    return text.decode()


def test_progress_is_drawn_on_terminals_only(jobs, tmp_path):
    # The line is drawn after a second: links to a long trace make the reading long enough.
    folder = tmp_path / "many"
    folder.mkdir()
    subprocess.run([BUILD / "examples" / "synthesize", "6000000", folder / "1.trace", "0", "0", "2"], check=True)
    for number in (2, 3):
        (folder / f"{number}.trace").symlink_to("1.trace")
    command = [COMMAND, "check", folder, "--budget", tmp_path / "budget.toml", "--write", "--force", "--jobs", "1"]
    assert stderr_of(command, terminal=False) == ""
    drawn = stderr_of(command, terminal=True)
    assert " of 3 traces, " in drawn and drawn.endswith("\r\x1b[K"), drawn
