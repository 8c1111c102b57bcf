"""`replay --follow` beside a running program: totals meanwhile, the normal report at its end."""

import os
import pty
import re
import select
import signal
import subprocess
import sys

import pytest

from conftest import COMMAND, DRIVER, LIBRARY, WORKLOADS, environment, gpumemtrace
from durability_case import Clock, build_programs, wait_until


class Followed:
    """A program that advances turn by turn, and a replay that follows it."""

    def __init__(self, folder, turns, traced=None, **how):
        self.trace = folder / "run.trace"
        self.follower = subprocess.Popen([COMMAND, "replay", "--follow", self.trace], text=True, stdout=subprocess.PIPE, **how)
        if self.follower.stderr:
            self.wait_for("does not exist or is empty; waiting")
        driver = folder / "libcuda.so.1"
        driver.symlink_to(DRIVER)
        self.program = subprocess.Popen(
            [sys.executable, WORKLOADS / "driver/driver_leak.py", driver, str(turns)], cwd=folder,
            env=environment(folder, **(traced or {})), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )

    def turns(self, last):
        """Lets the program run until turn `last` is over, a multiple of ten."""
        self.program.stdin.write("\n")
        self.program.stdin.flush()
        while self.program.stdout.readline() != f"turn {last}\n":
            assert self.program.poll() is None

    def wait_for(self, pattern):
        seen = ""
        while line := self.follower.stderr.readline():
            seen += line
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"nothing like {pattern!r} was printed:\n{seen}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in (self.program, self.follower):
            process.kill()
            process.communicate()


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_follow_prints_totals_then_report(tmp_path, end):
    with Followed(tmp_path, 40, stderr=subprocess.PIPE) as followed:
        for last in (9, 19, 29):
            followed.turns(last)
            # These few events are in no block yet and come from the ring.
            followed.wait_for(rf"GPU 0: driver {last + 1}\.00 MiB of ")
        if end == "kill":
            followed.program.send_signal(signal.SIGKILL)
        else:
            followed.turns(39)
        followed.program.wait()
        report, _ = followed.follower.communicate(timeout=60)
        assert followed.follower.returncode == 0
        assert report == gpumemtrace("replay", followed.trace)
        assert ("killed" in report) == (end == "kill")
        assert f"{30 if end == 'kill' else 40}.00 MiB" in report


def parts(folder):
    return [int(re.search(r"part(\d+)", path.name)[1]) for path in folder.glob("run.*.part*.trace")]


@pytest.mark.parametrize("limits", [{}, {"GPUMEMTRACE_MAX_TOTAL_SIZE": "8KiB"}], ids=["all kept", "oldest dropped"])
def test_follow_reads_new_parts(tmp_path, limits):
    (tmp_path / "bin").mkdir()
    preload = build_programs(tmp_path / "bin", ["clock_offset.so"]) / "clock_offset.so"
    clock = Clock(tmp_path / "clock")
    traced = limits | clock.settings | {"GPUMEMTRACE_ROTATE": "1h", "LD_PRELOAD": f"{preload}:{LIBRARY}"}
    with Followed(tmp_path, 1000, traced=traced, stderr=subprocess.PIPE) as followed:
        last, seen = -1, set()
        # Wait for two full parts; with a size limit, until the first one is gone.
        while len(seen) < 3 or (limits and 1 in parts(tmp_path)):
            last += 10
            followed.turns(last)
            clock.pass_an_hour()
            wait_until(lambda: set(parts(tmp_path)) - seen, "a part")
            seen.update(parts(tmp_path))
            followed.wait_for(rf"GPU 0: driver {last + 1}\.00 MiB of ")
        followed.program.send_signal(signal.SIGKILL)
        followed.program.wait()
        report, printed = followed.follower.communicate(timeout=60)
        code = 6 if limits else 0
        assert (followed.follower.returncode, report) == (code, gpumemtrace("replay", followed.trace, code=code))
        assert "killed" in report and "was replaced" not in printed


def test_follow_redraws_one_terminal_line_and_erases_it(tmp_path):
    ours, theirs = pty.openpty()
    with Followed(tmp_path, 20, stderr=theirs, env=os.environ | {"TERM": "xterm", "COLUMNS": "80"}) as followed:
        os.close(theirs)
        followed.turns(9)
        seen = b""
        while b"GPU 0: driver 10.00 MiB" not in seen:
            assert select.select([ours], [], [], 60)[0], seen
            seen += os.read(ours, 4096)
        followed.follower.send_signal(signal.SIGINT)
        report, _ = followed.follower.communicate(timeout=60)
        assert followed.follower.returncode == 0 and "10.00 MiB" in report
        try:
            while more := os.read(ours, 4096):
                seen += more
        except OSError:
            pass  # EIO: the other end is closed.
        os.close(ours)
        drawn = seen[seen.index(b"\r\n") + 2:] if b"waiting" in seen else seen
        assert drawn.endswith(b"\r\x1b[K"), drawn
        assert b"\n" not in drawn, "the status line is redrawn in place"
        assert all(len(line) < 80 for line in re.split(rb"\r|\x1b\[K", drawn))
