"""Runs the leak lab and prints its table; exits with 1 if any result is wrong.

usage: lab.py --python PYTHON --release FOLDER [--out FOLDER] [--steps N] [--batch N]

Runs each of the eight mistakes, fixed and leaky, and compares the two; a baseline, twice; and the
worst leak until the device is full, then for half as many steps, to check the forecast. A leak
counts as found if the first finding is at the line marked in train.py or model.py, the holder of
all its blocks is the list in train.py, the retained graph is one finding, and bytes and blocks per
step over all findings equal torch.cuda.memory_stats(), to the byte.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PATTERNS = ["forward_hook", "zero_grad", "tensor_retention", "autocast_scope", "optimizer_duplication", "grad_scaler",
            "retained_validation", "detached_fragments"]
# Longest period of the growth, in steps.
PERIOD = 4
# Block sizes are the requested sizes, rounded to 512 bytes, and each step leaves equal bytes.
CONF = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "PYTORCH_ALLOC_CONF": "expandable_segments:True"}


def line_of(pattern):
    """Returns file and line of the marker for a pattern."""
    for file in (HERE / "train.py", HERE / "model.py"):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if line.endswith(f"# line: {pattern}"):
                return str(file), number
    raise LookupError(pattern)


def retained(stats):
    """Returns bytes and blocks per step that PyTorch still holds, over the last whole periods."""
    steps = (len(stats["bytes"]) - 2) // PERIOD * PERIOD
    return [(stats[what][-1] - stats[what][-1 - steps]) / steps for what in ("bytes", "blocks")] if steps else [None] * 2


def unexpected_findings(pattern, fixed, report, stats):
    """Returns the differences between the report and the expected finding, as texts."""
    leaks = report["leaks"]
    if fixed or pattern == "baseline":
        return [f"{leak['kind']} leak at {leak['site']['file']}:{leak['site']['line']}" for leak in leaks]
    if not leaks:
        return ["nothing found"]
    found, first = [], leaks[0]
    if (first["site"]["file"], first["site"]["line"]) != line_of(pattern):
        found.append(f"the first line is {first['site']['file']}:{first['site']['line']}")
    if (first["shape"] == "retained_graph") != (pattern == "retained_validation"):
        found.append(f"its shape is {first['shape']}")
    reported = [sum(leak[key] for leak in leaks) for key in ("bytes_per_step", "blocks_per_step")]
    if reported != retained(stats):
        found.append(f"{reported} bytes and blocks per step, but PyTorch holds {retained(stats)}")
    return found


def unheld_findings(report):
    """Returns findings with another holder than the list in train.py, as texts."""
    found = []
    for leak in report["leaks"]:
        names = {holder["name"] for holder in leak["holders"] or []}
        if names != {"train.kept"}:
            found.append(f"held by {sorted(names) or 'unknown'} instead of train.kept")
        found += [f"{one['blocks']} blocks: {one['why']}" for one in (leak["holder_coverage"] or {"unresolved": []})["unresolved"]]
    return found


def missing_in_comparison(pattern, comparison):
    """Returns the expected new leak if the comparison of fixed and leaky run lacks it, as text."""
    new = [leak["after"]["site"] for leak in comparison["leaks"] if leak["status"] == "appeared"]
    if line_of(pattern) not in [(site["file"], site["line"]) for site in new]:
        return [f"compared with the mended run, these are new: {[(site['file'], site['line']) for site in new]}"]
    return []


class Lab:
    def __init__(self, args):
        self.args, self.failures = args, 0
        self.out = Path(args.out)
        self.out.mkdir(parents=True, exist_ok=True)

    def run(self, pattern, *options, steps, batch, **environment):
        """Returns the report and PyTorch's numbers."""
        name = "-".join([pattern, *(option.strip("-") for option in options), str(steps)])
        trace, stats = self.out / f"{name}.trace", self.out / f"{name}.json"
        for old in self.out.glob(f"{name}.trace*"):
            old.unlink()
        program = [self.args.python, HERE / "train.py", pattern, *options, "--steps", str(steps), "--batch", str(batch), "--stats", stats]
        command = [self.release / "gpumemtrace", "run", "--holders", "--output", trace, "--", *program]
        done = subprocess.run(list(map(str, command)), env=os.environ | CONF | environment, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{name} ended with {done.returncode}: {done.stderr[-2000:]}")
        text = subprocess.run([self.release / "gpumemtrace", "replay", trace, "--json"], check=True, capture_output=True, text=True).stdout
        return json.loads(text), json.loads(stats.read_text())

    def compare(self, before, after):
        """Compares the traces of two runs."""
        traces = [self.out / f"{name}-{self.args.steps}.trace" for name in (before, after)]
        done = subprocess.run([self.release / "gpumemtrace", "compare", *traces, "--json"], check=True, capture_output=True, text=True)
        return json.loads(done.stdout)

    @property
    def release(self):
        return Path(self.args.release).resolve()

    def row(self, pattern, report, stats, problems):
        self.failures += bool(problems)
        cells = [pattern, "yes" if report["leaks"] else "none", "", "", "", "", ""]
        if report["leaks"]:
            first, (held_bytes, _) = report["leaks"][0], retained(stats)
            site = f"{Path(first['site']['file']).name}:{first['site']['line']}"
            [holder, *_] = first["holders"] or [{"name": "unknown", "items": 0}]
            cells[2:] = [site, f"{holder['name']} ({holder['items']} items)", f"{first['bytes_per_step']:,} B, {first['blocks_per_step']:g} blocks",
                         first["period_steps"], f"{held_bytes:,.0f} B" if held_bytes is not None else ""]
        print("| " + " | ".join(map(str, [*cells, "; ".join(problems) or "ok"])) + " |", flush=True)

    def table(self):
        steps, batch = self.args.steps, self.args.batch
        print("| run | found | line | held by | per step, at that line | period | retained per step, by PyTorch | result |\n|---|---|---|---|---|---|---|---|")
        report, stats = self.run("baseline", steps=steps, batch=batch)
        self.row("baseline", report, stats, unexpected_findings("baseline", False, report, stats))
        for pattern in PATTERNS:
            for options in (["--fixed"], []):
                report, stats = self.run(pattern, *options, steps=steps, batch=batch)
                problems = unexpected_findings(pattern, bool(options), report, stats) + unheld_findings(report)
                if not options:
                    problems += missing_in_comparison(pattern, self.compare(f"{pattern}-fixed", pattern))
                self.row(" ".join([pattern, *options]), report, stats, problems)
        for pattern, few in [("retained_validation", 5), ("grad_scaler", 30)]:
            report, stats = self.run(pattern, steps=few, batch=batch)
            first = report["leaks"][0]["site"] if report["leaks"] else {"file": None, "line": None}
            problems = [] if (first["file"], first["line"]) == line_of(pattern) else ["not found this early"]
            self.row(f"{pattern} after {few} steps", report, stats, problems)

    def twice(self):
        """Compares two equal runs, which must not differ."""
        first = self.out / f"baseline-first-{self.args.steps}.trace"
        for trace in self.out.glob(f"baseline-first-{self.args.steps}.trace*"):
            trace.unlink()
        (self.out / f"baseline-{self.args.steps}.trace").rename(first)
        self.run("baseline", steps=self.args.steps, batch=self.args.batch)
        differs = self.compare("baseline-first", "baseline")["differs"]
        self.failures += differs
        print(f"\nTwo baselines, compared: {'they differ (wrong)' if differs else 'no difference, to the byte'}.")

    def until_full(self):
        """Runs the worst leak until the device is full."""
        size = {"SIMGPU_MEM": "8G"}
        report, stats = self.run("retained_validation", steps=100_000, batch=64, **size)
        full_at = len(stats["bytes"])
        if not report["oom"]:
            self.failures += 1
            print("\nThe device was never full.")
            return
        report, _ = self.run("retained_validation", steps=full_at // 2, batch=64, **size)
        forecast = report["leaks"][0]["oom_step"]
        is_near = abs(forecast["expected"] - full_at) <= max(1, full_at / 10)
        self.failures += not is_near
        print(f"\nretained_validation fills the device in step {full_at}. After {full_at // 2} steps the forecast is step "
              f"{forecast['expected']} ({forecast['earliest']} to {forecast['latest']}): {'ok' if is_near else 'wrong'}.")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", required=True)
    parser.add_argument("--release", required=True)
    parser.add_argument("--out", default="leaklab.out")
    parser.add_argument("--steps", type=int, default=34)
    parser.add_argument("--batch", type=int, default=128)
    lab = Lab(parser.parse_args())
    lab.table()
    lab.twice()
    lab.until_full()
    sys.exit(lab.failures > 0)


if __name__ == "__main__":
    main()
