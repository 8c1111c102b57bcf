"""Perfetto traces as Perfetto itself reads them: by its schema and by its trace processor."""

import json
import shutil
import subprocess
from pathlib import Path

from conftest import gpumemtrace
from readers import reader_program, readers_folder, run_reader, skip_or_fail

SUPPORT = Path(__file__).parent
#: What the trace processor could not use.
PROBLEMS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"


class PerfettoTrace:
    """A trace, decoded and checked."""

    def __init__(self, path):
        self.path = path
        decoded = json.loads(run_reader([reader_program("python"), SUPPORT / "perfetto_check.py", path]).stdout)
        self.processes = {int(pid): name for pid, name in decoded["processes"].items()}
        self.counters = {(pid, name): points for pid, name, points in decoded["counters"]}
        self.slices, self.instants, self.heaps = decoded["slices"], decoded["instants"], decoded["heaps"]
        self.clock = {int(clock): time for clock, time in decoded["clock"].items()}

    def counter(self, name):
        [points] = [points for (_, other), points in self.counters.items() if other == name]
        return points

    def named(self, track, rows):
        return [row for row in rows if row[1] == track]


def export_perfetto(folder, *arguments, code=0, name="out.pftrace"):
    """Exports traces and decodes the file."""
    gpumemtrace("export", "perfetto", *arguments, "--output", folder / name, code=code)
    return PerfettoTrace(folder / name)


def query(path, *queries):
    """Runs SQL queries in Perfetto's trace processor; returns the rows of each as dicts."""
    folder = readers_folder() / "trace-processor"
    if not (folder / "trace_processor.wasm").exists() or not shutil.which("node"):
        skip_or_fail("there is no trace processor (scripts/setup/trace-processor) or no node")
    done = subprocess.run(["node", SUPPORT / "trace_processor.mjs", folder, path], input=json.dumps(queries),
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)
