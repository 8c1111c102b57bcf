"""Traces of each kind that a page must show, and the pages made from them."""

import fcntl
import json
import os
import pickle
import shutil
import signal
import subprocess
from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, Decimal
from functools import cached_property
from pathlib import Path

import pytest

from conftest import COMMAND, LIBRARY, REPOSITORY, VENVS, WORKLOADS, environment, run_program
from page_file import PageFile

GOLDEN = REPOSITORY / "tests" / "golden"
INCOMPLETE = 6


def newest_torch():
    return max(VENVS, key=lambda version: [int(part) for part in version.split(".")])


@dataclass
class Page:
    """A page, the traces that it shows, and the same traces as `replay` reports them."""

    path: Path
    traces: list
    code: int
    compared: list = field(default_factory=list)

    @cached_property
    def file(self):
        return PageFile(self.path)

    @cached_property
    def report(self):
        """The report of `replay --json`, with what a page has from `--fragmentation`."""
        effects = self.replay(self.traces, "--fragmentation").get("setting_effects")
        return {**self.replay(self.traces), **({"setting_effects": effects} if effects else {})}

    def trace_of(self, index):
        """Returns the path of a trace by its index in the page; compared traces come last."""
        return (self.traces + self.compared)[index]

    def replay(self, traces, *flags):
        done = subprocess.run([COMMAND, "replay", *traces, "--json", *flags], capture_output=True, text=True, timeout=300)
        assert done.returncode == self.code, f"exit code {done.returncode}: {done.stderr}"
        return json.loads(done.stdout)


def make_page(folder, traces, *flags, code=0, compared=()):
    """Writes the page of some traces."""
    path = folder / "page.html"
    compare = [word for trace in compared for word in ("--compare", trace)]
    done = subprocess.run([COMMAND, "html", *traces, *compare, "--output", path, *flags], capture_output=True, text=True, timeout=300)
    assert done.returncode == code, f"exit code {done.returncode}, not {code}: {done.stdout}{done.stderr}"
    return Page(path, list(traces), code, list(compared))


def record(folder, script, *arguments, traced=True, trace="run.trace", **extra):
    """Records a workload on the simulated GPU, in the newest PyTorch here."""
    python = Path(VENVS[newest_torch()]) / "bin" / "python"
    run_program([python, WORKLOADS / script, *map(str, arguments)], folder, env=environment(folder, traced, **extra))
    assert (folder / trace).exists(), f"{script} left no {trace}"
    return folder / trace


def record_killed(folder):
    python = Path(VENVS[newest_torch()]) / "bin" / "python"
    command = [python, WORKLOADS / "training/train.py", "--leak", "hook", "--forever"]
    with subprocess.Popen(command, cwd=folder, env=environment(folder), stdout=subprocess.PIPE, text=True) as process:
        while int(process.stdout.readline()) < 20:
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
    return folder / "run.trace"


def damage(trace, folder):
    """Copies a trace and flips every bit of some bytes in its middle."""
    data = bytearray(trace.read_bytes())
    for position in range(len(data) // 2, len(data) // 2 + 64):
        data[position] ^= 0xFF
    damaged = folder / "damaged.trace"
    damaged.write_bytes(data)
    return damaged


def record_ranks(folder):
    """Returns traces of two ranks; the second one leaks."""
    traces = []
    for rank, leak in enumerate(["none", "hook"]):
        traces.append(record(folder, "training/train.py", "--steps", 15, "--leak", leak, "--quick-exit",
                             trace=f"run.rank{rank}.trace", RANK=rank, WORLD_SIZE=2))
    return traces


EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
ASYNC = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
LEAKING = ("training/train.py", "--steps", 20, "--leak", "hook", "--quick-exit")


def compared_runs(folder):
    after = record(folder, *LEAKING)
    (folder / "before").mkdir()
    before = record(folder / "before", "training/train.py", "--steps", 20, "--quick-exit")
    return make_page(folder, [after], compared=[before])


def moved_runs(folder):
    """Two runs of one program; in the second one, all lines moved, and a leak has more steps."""
    for name, inserted, steps in (("before", "", 20), ("after", "# inserted\n" * 7, 24)):
        shutil.copytree(WORKLOADS / "training", folder / name)
        script = folder / name / "train.py"
        script.write_text(inserted + script.read_text())
        record(folder / name, script, "--steps", steps, "--quick-exit", "--leak", "hook")
    return make_page(folder, [folder / "after" / "run.trace"], compared=[folder / "before" / "run.trace"])


def hostile_run(folder):
    """A trace in which every name is hostile, also its own: its path ends with `</script>...`."""
    names = folder / "<"
    names.mkdir()
    trace = names / "script><img src=x onerror=window.hostile=1>.trace"
    python = Path(VENVS[newest_torch()]) / "bin" / "python"
    done = run_program([python, WORKLOADS / "stacks/hostile_names.py"], folder, env=environment(folder, GPUMEMTRACE_OUTPUT=trace))
    (folder / "names.json").write_text(done.stdout)
    return make_page(folder, [trace])


#: Kinds of traces by name; each makes a page in a new folder.
KINDS = {
    **{
        path.stem: lambda folder, path=path: make_page(folder, [Path(shutil.copy(path, folder))])
        for path in sorted(GOLDEN.glob("*.trace"))
    },
    "leak": lambda folder: make_page(folder, [record(folder, *LEAKING, "--steps", 200)]),
    "expandable": lambda folder: make_page(folder, [record(folder, *LEAKING, **EXPANDABLE)]),
    "oom": lambda folder: make_page(folder, [record(folder, "memory/oom_growth.py", "validation", SIMGPU_MEM="2G")]),
    "fragmented": lambda folder: make_page(folder, [record(folder, "memory/fragmentation_gap.py", folder / "witness.json")]),
    "phases": lambda folder: make_page(folder, [record(folder, "training/steps.py", "phases")]),
    "periodic": lambda folder: make_page(folder, [record(folder, "memory/large_tensors.py")]),
    "async": lambda folder: make_page(folder, [record(folder, "memory/async_allocator.py", **ASYNC)]),
    "pluggable": lambda folder: make_page(folder, [record(folder, "memory/pluggable.py", LIBRARY, traced=False)]),
    "killed": lambda folder: make_page(folder, [record_killed(folder)]),
    "ranks": lambda folder: make_page(folder, record_ranks(folder)),
    "compared": compared_runs,
    "moved": moved_runs,
    "hostile": hostile_run,
    "damaged": lambda folder: make_page(folder, [damage(record(folder, *LEAKING), folder)], code=INCOMPLETE),
}


@pytest.fixture
def page_of(tmp_path_factory):
    """Makes the page of a kind, once for all workers."""
    if not VENVS:
        raise pytest.UsageError("GPUMEMTRACE_VENVS is not set: run scripts/test, which makes the environments")
    base = tmp_path_factory.getbasetemp()
    base = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "pages"
    base.mkdir(exist_ok=True)

    def make(kind):
        stored = base / f"{kind}.pickle"
        with open(base / f"{kind}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not stored.exists():
                (base / kind).mkdir()
                stored.write_bytes(pickle.dumps(KINDS[kind](base / kind)))
        return pickle.loads(stored.read_bytes())

    return make


def bytes_text(count):
    """Writes bytes as the page and the text report do."""
    units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    value, unit = Decimal(abs(count)), 0
    # No number prints as 1024.00.
    while value >= (Decimal("1023.995") if unit else 1024) and unit < len(units) - 1:
        value, unit = value / 1024, unit + 1
    number = value if unit == 0 else value.quantize(Decimal("0.01"), ROUND_HALF_EVEN)
    return f"{'-' if count < 0 else ''}{number} {units[unit]}"
