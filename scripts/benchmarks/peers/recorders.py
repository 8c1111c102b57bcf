"""The recorders: how each runs, its files, their readers, and a count of recorded events."""

import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from measure import Failed, clean_environment

#: Size of the block that workload.c allocates first; earlier events are not the workload's.
MARKER_BYTES = 987_643

#: heaptrack 1.4 has a table that may grow without bound (its commit f1f59da).
HEAPTRACK_LIMIT_BYTES = 4 << 30

HEAPTRACK_INTERPRET = Path("/usr/lib/heaptrack/libexec/heaptrack_interpret")

COUNT_MEMRAY = f"""
import sys, memray
count = None
for record in memray.FileReader(sys.argv[1]).get_allocation_records():
    if count is not None:
        count += 1
    elif record.size == {MARKER_BYTES}:
        count = 0
print(count or 0)
"""

COUNT_HISTORY = """
import pickle, sys
with open(sys.argv[1], "rb") as file:
    print(sum(entry["action"] in ("alloc", "free_completed") for trace in pickle.load(file)["device_traces"] for entry in trace))
"""


@dataclass
class Recorder:
    """One row of a table."""

    name: str
    #: Words before the program; for recorders that run a module, words after the interpreter.
    before: list = field(default_factory=list)
    module: list = field(default_factory=list)
    #: Environment and last argument of the program.
    env: dict = field(default_factory=dict)
    argument: str = ""
    files: str = "*.nothing"
    #: Commands that print the recorder's main report.
    analysis: list = field(default_factory=list)
    #: Counts the program's events in the files of a folder.
    count: object = None
    limit_bytes: int = None
    #: The host program is the C one, not the Python one.
    is_c: bool = False
    #: Why the recorder cannot run; empty if it can.
    missing: str = ""

    def bytes_of(self, folder):
        return sum(path.stat().st_size for path in folder.glob(self.files) if path.is_file())


def lines_of(command, folder):
    """Yields the lines of a command, also of a truncated file of a killed program."""
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        yield from process.stdout


def number_of(command, folder):
    done = subprocess.run(command, cwd=folder, env=clean_environment(), capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise Failed(f"its file cannot be read: {done.stderr.strip()[-300:]}")
    return int(done.stdout)


def count_gpumemtrace(command):
    return lambda folder: sum(" kind=block_" in line for line in lines_of([command, "dump", "run.trace"], folder))


def count_heaptrack(folder):
    """Counts in an interpreted file: `a SIZE TRACE` defines what `+ N` and `- N` refer to."""
    marker, defined, count = None, 0, None
    for line in lines_of(["zstd", "-dc", "heaptrack.zst"], folder):
        if line.startswith("a "):
            if int(line.split()[1], 16) == MARKER_BYTES:
                marker = defined
            defined += 1
        elif line[:2] in ("+ ", "- ") and marker is not None:
            if count is not None:
                count += 1
            elif int(line[2:], 16) == marker:
                count = 0
    return count or 0


def count_heaptrack_raw(folder):
    count = None
    for line in lines_of(["zstd", "-dc", "heaptrack.raw.zst"], folder):
        if line[:2] in ("+ ", "- "):
            if count is not None:
                count += 1
            elif int(line.split()[1], 16) == MARKER_BYTES:
                count = 0
    return count or 0


def gpumemtrace(name, release, stacks, **how):
    command = release / "gpumemtrace"
    env = {"LD_PRELOAD": str(release / "libgpumemtrace.so"), "GPUMEMTRACE_STACKS": stacks, "GPUMEMTRACE_OUTPUT": "run.trace"}
    return Recorder(name, env=env | how.pop("env", {}), files="run*trace*", analysis=[[command, "replay", "--json", "run.trace"]],
                    count=count_gpumemtrace(command), **how)


def host_recorders(release, memray, driver):
    """Recorders of the host workload. The first two rows are the programs untraced."""
    def ours(name, stacks, **how):
        # No PyTorch runs here, so its tracker is off.
        return gpumemtrace(name, release, stacks, env={"GPUMEMTRACE_TORCH_DETAILS": "off"}, argument=str(driver), **how)

    heaptrack = "" if HEAPTRACK_INTERPRET.exists() else "not installed"
    of_memray = "" if memray else "not installed"
    flamegraph = [memray, "-m", "memray", "flamegraph", "--force", "-o", "report.html", "memray.bin"]
    interpret = f"zstd -dc heaptrack.raw.zst | {HEAPTRACK_INTERPRET} | zstd -qfo heaptrack.zst && heaptrack_print heaptrack.zst"

    def memray_run(name, *flags):
        return Recorder(name, module=["-m", "memray", "run", "-q", *flags, "-o", "memray.bin"], files="memray.bin", analysis=[flamegraph],
                        count=lambda folder: number_of([memray, "-c", COUNT_MEMRAY, "memray.bin"], folder), missing=of_memray)

    return [
        Recorder("C, untraced", is_c=True),
        Recorder("Python, untraced"),
        Recorder("heaptrack", is_c=True, before=["heaptrack", "-o", "heaptrack"], files="heaptrack.zst", count=count_heaptrack,
                 analysis=[["heaptrack_print", "heaptrack.zst"]], limit_bytes=HEAPTRACK_LIMIT_BYTES, missing=heaptrack),
        Recorder("heaptrack `--raw`", is_c=True, before=["heaptrack", "--raw", "-o", "heaptrack"], files="heaptrack.raw.zst",
                 count=count_heaptrack_raw, analysis=[["sh", "-c", interpret]], limit_bytes=HEAPTRACK_LIMIT_BYTES, missing=heaptrack),
        ours("**gpumemtrace**, native stacks", "native", is_c=True),
        memray_run("memray"),
        ours("**gpumemtrace**, Python stacks", "python"),
        memray_run("memray `--native`", "--native"),
        ours("**gpumemtrace**, both stacks", "both"),
    ]


def training_recorders(release, python, stormlog):
    """Recorders of the training. The first row is the program untraced."""
    visualize = [[python, "-m", "torch.cuda._memory_viz", "trace", "snapshot.pickle"]]
    analyze = [[python, "-m", "stormlog.cli", "analyze", "sink"]]
    return [
        Recorder("untraced", argument="bare"),
        gpumemtrace("**gpumemtrace** (default)", release, "python", argument="bare"),
        gpumemtrace("**gpumemtrace**, both stacks", release, "both", argument="bare"),
        Recorder("PyTorch's history, Python stacks", argument="history", files="snapshot.pickle", analysis=visualize,
                 count=lambda folder: number_of([sys.executable, "-c", COUNT_HISTORY, "snapshot.pickle"], folder)
                 if (folder / "snapshot.pickle").exists() else 0),
        Recorder("Stormlog", argument="stormlog", env={"PYTHONPATH": str(stormlog)}, files="sink/*", analysis=analyze,
                 count=count_samples, missing="" if stormlog else "not installed"),
    ]


class Samples(int):
    """A count of samples: Stormlog records no events."""


def count_samples(folder):
    lines = (line for path in sorted(folder.glob("sink/segment-*.jsonl")) for line in path.read_text().splitlines())
    return Samples(sum(bool(re.search(r'"event_type": ?"sample"', line)) for line in lines))
