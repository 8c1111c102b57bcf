"""Runs the programs under test, bare or traced, and collects their output."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections import namedtuple
from pathlib import Path

from .trace import Trace
from .verdicts import Different, Impossible

PROGRAMS = Path(__file__).resolve().parent / "programs"

Ran = namedtuple("Ran", "code output facts folder")


class Harness:
    """Starts programs, bare or traced, and reads their facts and traces."""

    def __init__(self, args, folder):
        self.args, self.folder, self.count = args, Path(folder), 0
        self.machine, self.simulated = {}, False

    def environment(self, folder, traced, extra):
        """Returns the caller's environment without variables that would change a result."""
        env = {name: value for name, value in os.environ.items()
               if not name.startswith(("GPUMEMTRACE_", "PYTORCH_", "LD_PRELOAD")) and name not in ("RANK", "WORLD_SIZE")}
        env.update(VALIDATE_FACTS=str(folder / "facts"), VALIDATE_LIBCUDA=self.machine.get("libcuda", ["libcuda.so.1"])[0])
        if traced:
            env["LD_PRELOAD"] = str(self.args.library)
        env.update({name: str(value) for name, value in extra.items()})
        return env

    def start(self, program, traced, extra=(), arguments=()):
        """Starts a program in a new folder."""
        self.count += 1
        folder = self.folder / str(self.count)
        folder.mkdir()
        shutil.copy(PROGRAMS / "witness.py", folder)
        shutil.copy(PROGRAMS / (program + ".py"), folder / "program.py")
        (folder / "facts").write_text("")
        with open(folder / "output", "wb") as output:
            process = subprocess.Popen([str(self.args.python), "program.py", *map(str, arguments)], cwd=folder, stdout=output,
                                       stderr=output, stdin=subprocess.DEVNULL, start_new_session=True,
                                       env=self.environment(folder, traced, dict(extra)))
        return process, folder

    def finish(self, process, folder, patience):
        try:
            code = process.wait(patience)
        except subprocess.TimeoutExpired:
            code = None
        with contextlib.suppress(ProcessLookupError):  # with all its children
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        output = (folder / "output").read_text(errors="replace")
        return Ran(code, output, [json.loads(line) for line in (folder / "facts").read_text().splitlines()], folder)

    def run(self, program, traced=False, extra=(), arguments=(), patience=180):
        """Runs a program to its end."""
        return self.finish(*self.start(program, traced, extra, arguments), patience)

    def run_bare(self, program, **how):
        """Runs a program without the library; returns its facts."""
        ran = self.run(program, **how)
        if self.failure_of(ran):
            raise Impossible(self.failure_of(ran))
        return ran.facts

    def run_traced(self, program, complete=True, **how):
        """Runs a program under the library; returns its facts and its trace. A failure counts as
        the library's only if the bare run succeeds."""
        ran = self.run(program, traced=True, **how)
        if self.failure_of(ran):
            raise self.blame_for(ran, program, how)
        trace = self.trace(ran.folder)
        if complete and (trace.incomplete or trace.code != 0):
            raise Different("the trace is incomplete: %s" % ("; ".join(trace.incomplete) or "exit code %d" % trace.code))
        return ran.facts, trace

    def blame_for(self, ran, program, how):
        """Returns the exception for a failed traced program, after a run without the library."""
        why = self.failure_of(self.run(program, **how))
        return Impossible(why) if why else Different("fails with the library only: " + self.failure_of(ran))

    def trace(self, folder, name="run.trace"):
        """Reads the trace in a program's folder."""
        if not (folder / name).exists():
            lines = [line for line in (folder / "output").read_text(errors="replace").splitlines() if line.startswith("gpumemtrace")]
            raise Different("no trace was written; output of the library: %s" % (" ".join(lines)[:300] or "nothing"))
        return Trace(self.args.command, folder / name)

    @staticmethod
    def failure_of(ran):
        """Returns why a program failed, or None."""
        why = next((facts["impossible"] for facts in ran.facts if "impossible" in facts), None)
        return why or (None if ran.code == 0 else failure(ran))


def failure(ran):
    how = "timed out" if ran.code is None else "exit code %d" % ran.code if ran.code >= 0 else \
        "killed by " + signal.Signals(-ran.code).name
    return "%s: %s" % (how, " ".join(ran.output.strip()[-400:].split()))
