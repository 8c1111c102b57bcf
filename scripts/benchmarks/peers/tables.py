"""Prints the tables of scripts/benchmarks/peers/run, which builds and installs the recorders.

Recorders take turns. Costs are minima over the rounds, because other load on the machine only adds;
losses are the worst over all kills.
"""

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import Failed, cpu_seconds, run
from recorders import Samples, host_recorders, training_recorders

HERE = Path(__file__).resolve().parent
COLUMNS = ["", "CPU of the program", "beside and after", "bytes", "memory", "of helpers", "analysis", "kept at exit", "kept after SIGKILL"]


class Host:
    """The random host workload: work is pairs."""

    def __init__(self, args):
        self.work, self.recorders = args.pairs, host_recorders(args.release, args.memray, args.driver)
        self.title = f"Random host workload, {self.work:,} pairs of allocation and free, {args.per_stack} on a stack"
        self._per_stack = str(args.per_stack)
        self._program, self._library, self._python = args.work / "workload", args.work / "workload.so", args.memray or sys.executable

    def command(self, recorder, work):
        arguments = ["tally", str(work), self._per_stack, recorder.argument]
        if recorder.is_c:
            return [*recorder.before, self._program, *arguments]
        return [self._python, *recorder.module, HERE / "host_program.py", self._library, *arguments]

    def untraced(self, recorder):
        return self.recorders[0 if recorder.is_c else 1]


class Training:
    """Training steps on the simulated GPU: work is steps."""

    def __init__(self, args):
        self.work, self.recorders = args.steps, training_recorders(args.release, args.torch, args.stormlog)
        version = subprocess.run([args.torch, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True)
        self.title = f"Training of {args.model}, {self.work:,} steps, torch {version.stdout.strip()} on the simulated GPU"
        self._python, self._model = args.torch, args.model

    def command(self, recorder, work):
        return [self._python, HERE / "train_program.py", "tally", str(work), self._model, recorder.argument]

    def untraced(self, recorder):
        return self.recorders[0]


class Row:
    """The measurements of one recorder: minima over the rounds."""

    def __init__(self):
        self.least, self.kept, self.kept_killed, self.trouble = {}, None, [], ""
        #: Events that the program counted, and those before its loop.
        self.events = self.events_before = 0

    def note(self, name, value):
        self.least[name] = min(value, self.least.get(name, value))


def measure_once(workload, recorder, row, scratch):
    for name, work in (("empty", 0), ("full", workload.work)):
        folder = Path(tempfile.mkdtemp(dir=scratch))
        done = run(workload.command(recorder, work), folder, recorder.env, recorder.limit_bytes)
        row.note(name + " beside", done.beside_ns)
        row.note(name + " own", done.tally.own_ns)
        row.note(name + " bytes", recorder.bytes_of(folder))
        row.note(name + " peak", done.tally.peak_bytes)
        row.note(name + " helpers", done.helper_peak_bytes)
        if recorder.analysis:
            row.note(name + " analysis", cpu_seconds(recorder.analysis, folder, recorder.env))
        if work:
            row.events = done.tally.events
            if recorder.count and row.kept is None:
                row.kept = kept(recorder, folder, row.events)
        else:
            row.events_before = done.tally.events
        shutil.rmtree(folder)


def kept(recorder, folder, events):
    """Returns the recorded share of the program's events, of those counted before the kill."""
    count = recorder.count(folder)
    return count if isinstance(count, Samples) else min(1.0, count / events)


def kill_once(workload, recorder, row, scratch, moment):
    folder = Path(tempfile.mkdtemp(dir=scratch))
    # The program runs much longer than the kill takes.
    done = run(workload.command(recorder, 100 * workload.work), folder, recorder.env, recorder.limit_bytes,
               kill_at_events=max(1, round(moment * row.events)))
    row.kept_killed.append(kept(recorder, folder, done.tally.events))
    shutil.rmtree(folder)


def measure(workload, rounds, kills, scratch):
    rows = {recorder.name: Row() for recorder in workload.recorders}
    moments = random.Random(1)

    def each(work):
        for recorder in workload.recorders:
            row = rows[recorder.name]
            row.trouble = row.trouble or recorder.missing
            if not row.trouble:
                try:
                    work(recorder, row)
                except Failed as failed:
                    row.trouble = f"failed: {failed}".replace("\n", " ").replace("|", "/")[:200]

    for number in range(rounds):
        print(f"benchmarks/peers: {workload.title}: round {number + 1} of {rounds}", file=sys.stderr)
        each(lambda recorder, row: measure_once(workload, recorder, row, scratch))
    for number in range(kills):
        print(f"benchmarks/peers: {workload.title}: kill {number + 1} of {kills}", file=sys.stderr)
        moment = moments.uniform(0.1, 0.9)
        each(lambda recorder, row: recorder.count and kill_once(workload, recorder, row, scratch, moment))
    return rows


def cells(recorder, row, bare):
    """Formats the cells of a row. Start-up cost is in the memory figures only."""
    least, events = row.least, row.events - row.events_before
    over = lambda name: least["full " + name] - least["empty " + name]
    if not recorder.count:
        return [f"{over('own') / events:,.0f} ns", "", "", f"{least['full peak'] / 1e6:,.0f} MB", "", "", "", ""]
    own = least["full own"] - bare.least["full own"]
    beside = over("beside") - (bare.least["full beside"] - bare.least["empty beside"])
    plus = lambda figure, unit: f"+{figure:,.0f} {unit}" if figure > 0 else "within noise"
    share = lambda value: f"0% ({value} samples)" if isinstance(value, Samples) else f"{100 * value:.4g}%"
    return [
        plus(own / events, "ns"), plus(beside / events, "ns"), f"{over('bytes') / events:.2f}",
        plus((least["full peak"] - bare.least["full peak"]) / 1e6, "MB"),
        f"{least['full helpers'] / 1e6:,.0f} MB" if least["full helpers"] else "none",
        f"{over('analysis') / events * 1e6:.2f} s" if over("analysis") > 0 else "within noise",
        share(row.kept), share(min(row.kept_killed)) if row.kept_killed else "not tried",
    ]


def print_table(workload, rows, rounds, kills):
    events = max(row.events for row in rows.values())
    print(f"{workload.title}: {events:,} events; minimum of {rounds} interleaved rounds, worst of {kills} kills\n")
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for recorder in workload.recorders:
        row, bare = rows[recorder.name], rows[workload.untraced(recorder).name]
        trouble = row.trouble or bare.trouble
        print(f"| {recorder.name} | {' | '.join([trouble] + [''] * 7 if trouble else cells(recorder, row, bare))} |")
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--release", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder with the built workload")
    parser.add_argument("--memray", help="interpreter with memray")
    parser.add_argument("--torch", help="interpreter with torch")
    parser.add_argument("--stormlog", help="folder with stormlog")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--kills", type=int, required=True)
    parser.add_argument("--pairs", type=int, required=True)
    parser.add_argument("--per-stack", type=int, default=1)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--model", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        # The recorder finds the driver by its name.
        args.driver = Path(scratch) / "libcuda.so.1"
        args.driver.symlink_to(args.release / "libsimgpu_driver.so")
        for workload in [Host(args)] + ([Training(args)] if args.torch else []):
            rows = measure(workload, args.rounds, args.kills, scratch)
            print_table(workload, rows, args.rounds, args.kills)
            if any(row.trouble.startswith("failed") and "gpumemtrace" in name for name, row in rows.items()):
                sys.exit("benchmarks/peers: gpumemtrace itself failed; see its rows")


if __name__ == "__main__":
    main()
