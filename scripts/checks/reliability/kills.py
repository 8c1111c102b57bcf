"""Kills programs at random moments and compares each trace with the driver's log.

The seed decides host, moment and its fraction; the fraction of a measured life gives the time. So a
round of the same seed makes the same choice, and the machine decides the exact instruction.
"""

import os
import random
import shutil
import signal
import subprocess
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field

from . import oracle
from .hosts import BY_NAME, COMMAND, PYTORCH, TARGET, fill, small_disk

#: Where rounds run, and where the files of failed ones stay.
FOLDER = TARGET / "soak"
#: A host that does not end is a failure of its round.
LIMIT_SECONDS = 120


@dataclass
class Life:
    """The times of an undisturbed run, in seconds from its start, and its file calls."""

    begun: float
    leaving: float
    end: float
    file_calls: int = 0


@dataclass
class Round:
    """One kill: what was chosen, and what the trace has."""

    number: int
    attempt: int
    host: str
    moment: str
    fraction: float
    #: Milliseconds from the start of the program to the kill.
    at_ms: float = 0
    #: start, run, fork or exit: what the program had printed when it died.
    phase: str = ""
    killed: bool = False
    verdict: str = ""
    outcome: oracle.Outcome = field(default_factory=oracle.Outcome)

    def line(self):
        """The row of the log; `COLUMNS` names its columns."""
        out = self.outcome
        values = [f"{self.number}.{self.attempt}", self.host, f"{self.moment.replace(' ', '-')}:{self.fraction:.3f}", f"{self.at_ms:.1f}", self.phase or "-",
                  out.end.replace(" ", "-"), "yes" if out.complete else "no", out.calls, out.events, out.in_flight, out.missing,
                  out.missing - out.reported, self.verdict]
        return " ".join(map(str, values))


COLUMNS = "round.attempt host moment:fraction at_ms phase end complete calls events in_flight missing unreported verdict"


class Reader(threading.Thread):
    """Reads what a program prints, so that it never waits, and notes when."""

    def __init__(self, stream):
        super().__init__(daemon=True)
        self.stream, self.words, self.times = stream, [], {}
        self.changed = threading.Condition()
        self.start()

    def run(self):
        for line in iter(self.stream.readline, ""):
            with self.changed:
                self.words.append(line.strip())
                self.times.setdefault(line.strip(), time.monotonic())
                self.changed.notify_all()
        with self.changed:
            self.words.append("closed")
            self.changed.notify_all()

    def wait_for(self, word, count=1):
        """Waits until a word was printed `count` times, or the program has ended."""
        with self.changed:
            self.changed.wait_for(lambda: self.words.count(word) >= count or "closed" in self.words, LIMIT_SECONDS)

    def last_blocks(self):
        """PyTorch's own count of allocations and frees, as the program printed it last."""
        counts = [word.split()[1:] for word in self.words if word.startswith("blocks ")]
        return tuple(map(int, counts[-1])) if counts else (0, 0)

    def phase(self):
        """What the program was doing when it ended."""
        printed = [word for word in self.words if word != "closed"]
        if "leaving" in printed:
            return "exit"
        if printed and printed[-1] == "fork":
            return "fork"
        return "run" if "begun" in printed else "start"


def choose(seed, number, attempt, hosts):
    """Returns the host, the moment and its fraction of this attempt. `hosts` has names, in turn."""
    host = BY_NAME[hosts[number % len(hosts)]]
    choice = random.Random(f"{seed}.{number}.{attempt}")
    # Half of the kills are uniform from the first GPU calls on; the rest aims at short phases.
    moment = "run" if choice.random() < 0.5 else choice.choice(["start", "exit", *host.moments, *host.moments])
    return host, moment, choice.random()


def parts_in(folder):
    return sum(".part" in name for name in os.listdir(folder))


def wait_for_moment(process, reader, began, moment, fraction, life, traces):
    """Returns at the moment of the kill."""
    if moment == "run":
        reader.wait_for("begun")
        time.sleep(fraction * (life.leaving - life.begun) * 1.1)
    elif moment == "start":
        # More often late: a program does not use the GPU before.
        time.sleep(max(0, began + fraction**0.5 * life.begun * 1.1 - time.monotonic()))
    elif moment == "exit":
        reader.wait_for("leaving")
        time.sleep(fraction * (life.end - life.leaving))
    elif moment == "fork":
        reader.wait_for("fork", 1 + int(fraction * 20))
        time.sleep(fraction * 20 % 1 * 0.001)
    elif moment == "rotation":
        # Right after a new part appeared; the writer is still between two files.
        wanted = 1 + int(fraction * 4)
        while parts_in(traces) < wanted and process.poll() is None:
            time.sleep(0.0002)
        time.sleep(fraction * 4 % 1 * 0.002)
    elif moment == "file call":
        process.wait(LIMIT_SECONDS)


def run_host(programs, host, folder, moment=None, fraction=0.0, life=None, result=None):
    """Runs one host, kills it if a moment is given, and compares its trace."""
    folder.mkdir(parents=True)
    extra = {}
    if moment == "file call":
        extra["SOAK_KILL_AT"] = str(1 + int(fraction * life.file_calls))
    elif moment is None and "file call" in host.moments:
        extra["SOAK_COUNT_TO"] = str(folder / "file-calls")
    with ExitStack() as stack:
        traces = folder
        if host.disk_fills:
            traces = folder / "disk"
            stack.enter_context(small_disk(traces))
            extra["GPUMEMTRACE_OUTPUT"] = str(traces / "run.trace")
        env = programs.environment(host, folder, **extra)
        errors = stack.enter_context(open(folder / "stderr", "w"))
        began = time.monotonic()
        process = subprocess.Popen(programs.command(host), cwd=folder, env=env, text=True, stdout=subprocess.PIPE,
                                   stdin=subprocess.DEVNULL, stderr=errors, start_new_session=True, preexec_fn=lambda: os.nice(2))
        stack.callback(end_group, process)
        reader = Reader(process.stdout)
        if host.disk_fills:
            threading.Thread(target=lambda: (reader.wait_for("begun"), fill(traces)), daemon=True).start()
        if moment:
            wait_for_moment(process, reader, began, moment, fraction, life, traces)
            process.send_signal(signal.SIGKILL)
        at = time.monotonic() - began
        code = process.wait(LIMIT_SECONDS)
        ended = time.monotonic() - began
        # Children of a killed program keep the pipe open.
        end_group(process)
        reader.join(LIMIT_SECONDS)
        result = result or Round(0, 0, host.name, "none", 0)
        result.at_ms, result.phase, result.killed = 1000 * at, reader.phase(), code == -signal.SIGKILL
        oracle.check(code in (0, -signal.SIGKILL) or is_torch_abort(host, code, folder), f"the program exited with {code}")
        result.outcome = oracle.compare(
            COMMAND, traces / "run.trace", folder / "driver.log", process.pid, may_lose=host.disk_fills, drops_oldest=host.drops_oldest,
            one_device_blocks=host.has_totals, least_blocks=reader.last_blocks(), torn_write=moment == "file call")
        if result.killed and result.phase not in ("exit", "start"):
            oracle.check(result.outcome.end == "killed" or host.disk_fills, f"the trace says that the end was {result.outcome.end}")
        if code == 0:
            oracle.check(result.outcome.end == "exit" or host.disk_fills, f"the program exited, the trace says {result.outcome.end}")
        calls = folder / "file-calls"
        # The reader may see a word after the end.
        since = lambda word: min(reader.times.get(word, began + ended) - began, ended)
        return result, Life(since("begun"), since("leaving"), ended, int(calls.read_text()) if calls.exists() else 0)


def is_torch_abort(host, code, folder):
    """PyTorch 2.15.0 aborts in about one exit of 60, traced or not."""
    return host.language == PYTORCH and code == -signal.SIGABRT and "terminate called without" in (folder / "stderr").read_text()


def end_group(process):
    """Ends a program and its children."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def run_round(programs, seed, number, hosts, lives, folder):
    """Returns the attempts of one round: the last one was killed, unless the round failed."""
    attempts = []
    for attempt in range(20):
        host, moment, fraction = choose(seed, number, attempt, hosts)
        result = Round(number, attempt, host.name, moment, fraction)
        attempts.append(result)
        place = folder / f"{number}.{attempt}"
        try:
            run_host(programs, host, place, moment, fraction, lives[host.name], result)
            result.verdict = "ok" if result.killed else "ended"
        except (oracle.Wrong, subprocess.TimeoutExpired, ValueError, KeyError, IndexError) as error:
            result.verdict = f"FAILED {type(error).__name__}: {error}"
            kept = FOLDER / "failures" / f"seed-{seed}-round-{number}.{attempt}"
            shutil.rmtree(kept, ignore_errors=True)
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(place, kept)
            shutil.rmtree(place)
            break
        shutil.rmtree(place)
        if result.killed:
            break
    return attempts
