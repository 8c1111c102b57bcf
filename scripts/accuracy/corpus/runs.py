"""Runs a program without the recorder (for the truth) and with it (for the report)."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from .programs import ROOT
from .truth import truth_of

PROBE = ROOT.parent / "probe"
PROBE_PATHS = [str(PROBE), str(PROBE / "site-packages")]
ALLOCATORS = {
    "default": {},
    "async": {"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync", "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    "nocache": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    "expandable": {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
}
# A program that takes longer than this is stuck.
LIMIT_SECONDS = 300
# PyTorch sometimes aborts after its work is done, because one of its threads still runs; the run is
# repeated (https://github.com/pytorch/pytorch/issues/38228).
ABORTED = "terminate called without an active exception"
ABORTED_CODES = (-signal.SIGABRT, 128 + signal.SIGABRT)
TRIES = 8


class RunFailed(Exception):
    """The program or a command of gpumemtrace failed; the text says how."""


class Runner:
    def __init__(self, args):
        self.python, self.gpumemtrace, self.library = args.python, args.gpumemtrace, args.library
        self.paths, self.allocator, self.kill_half = args.python_path, args.allocator, args.kill_half
        self.replay_options, self.run_options, self.keep = args.replay_option, args.run_option, args.keep
        self.twice = args.repeat > 1
        self.out = Path(args.out).resolve()
        for folder in ("truth", "traces"):
            (self.out / folder).mkdir(parents=True, exist_ok=True)

    def truth(self, program, steps, memory=None, done=None):
        """Measures the program; the result is kept until the program or the probe changes.

        The truth is that of the first `done` steps, if given.
        """
        # Without its caching allocator, PyTorch counts nothing, or the driver's rounded sizes. The
        # program asks for the same bytes, which the report then has.
        is_uncached = self.allocator in ("nocache", "async")
        allocator = "default" if is_uncached else self.allocator
        text = program.path.read_text(encoding="utf-8")
        imported = [file for file in sorted(PROBE.rglob("*.py")) if file.stem in text]
        sources = [code_of(file) for file in (program.path, *imported)]
        parts = [*sources, self.python, allocator, memory or program.memory, program.collect]
        key = hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
        file = self.out / "truth" / f"{program.family}-{program.name}-{steps}-{allocator}-{key}.json"
        if not file.exists():
            part = file.with_suffix(".part")
            environment = {"PROBE_TRUTH": str(part), "PROBE_COLLECT": str(int(program.collect)), **ALLOCATORS[allocator]}
            ended = self._run([self.python, program.path, "--steps", steps], environment, memory or program.memory)
            if ended.returncode and not (part.exists() and json.loads(part.read_text())["full_at"]):
                raise RunFailed(f"exit {ended.returncode}: {last_lines(ended.stderr)}")
            part.rename(file)
        return truth_of(program, json.loads(file.read_text()), steps, done, requested=is_uncached)

    def report(self, program, steps, memory=None):
        """Records one run; returns the report, its bytes and the seconds of the run."""
        trace = self.out / "traces" / f"{program.family}-{program.name}-{steps}-{self.allocator}-{os.getpid()}-{id(object())}.trace"
        environment = dict(ALLOCATORS[self.allocator])
        if self.library:
            environment["LD_PRELOAD"], environment["GPUMEMTRACE_OUTPUT"] = self.library, str(trace)
        if self.kill_half:
            environment["PROBE_KILL_STEP"] = str(steps // 2)
        record = [] if self.library else [self.gpumemtrace, "run", *self.run_options, "-o", trace, "--"]
        began = time.monotonic()
        try:
            done = self._run([*record, self.python, program.path, "--steps", steps], environment, memory or program.memory, trace)
            seconds = time.monotonic() - began
            killed = (-signal.SIGKILL, 128 + signal.SIGKILL)
            was_expected = self.kill_half and done.returncode in killed or program.memory and done.returncode == 1
            if done.returncode != 0 and not was_expected:
                raise RunFailed(f"exit {done.returncode}: {last_lines(done.stderr)}")
            text = self._replay(trace)
            if self.twice and text != self._replay(trace):
                raise RunFailed("two reports of one trace differ")
            return json.loads(text), text, seconds
        finally:
            if not self.keep:
                remove_trace(trace)

    def _replay(self, trace):
        command = [self.gpumemtrace, "replay", trace, "--json", "--no-progress", *self.replay_options]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=LIMIT_SECONDS)
        # Exit codes of 2 and above report findings or losses.
        if not done.stdout.startswith("{"):
            raise RunFailed(f"replay: exit {done.returncode}: {last_lines(done.stderr)}")
        return done.stdout

    def _run(self, command, environment, memory, trace=None):
        paths = [*PROBE_PATHS, *self.paths, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"} | environment
        # The work is on the (simulated) GPU; more threads only wait for each other.
        environment.setdefault("OMP_NUM_THREADS", "1")
        if memory:
            environment["SIMGPU_MEM"] = str(memory)
        for _ in range(TRIES):
            try:
                done = subprocess.run(
                    list(map(str, command)), env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, cwd=self.out
                )
            except subprocess.TimeoutExpired:
                raise RunFailed(f"did not end within {LIMIT_SECONDS} s") from None
            if done.returncode not in ABORTED_CODES or ABORTED not in done.stderr:
                break
            remove_trace(trace)
        return done


def remove_trace(trace):
    """Removes a trace with its ring file and cache."""
    for file in trace.parent.glob(trace.name + "*") if trace else ():
        file.unlink()


def code_of(file):
    """Returns the text after the docstring, on which a measurement depends."""
    return file.read_text(encoding="utf-8").split('"""', 2)[2]


def last_lines(text, count=3):
    return " | ".join(text.strip().splitlines()[-count:])


def missing_modules(python, paths, names):
    """Returns those of the modules that cannot be imported."""
    code = "import importlib.util, sys; print(*[n for n in sys.argv[1:] if importlib.util.find_spec(n) is None])"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run([python, "-c", code, *names], env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{python}: {last_lines(done.stderr)}")
    return set(done.stdout.split())
