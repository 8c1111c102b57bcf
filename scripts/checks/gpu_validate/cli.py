"""Runs the selected checks and writes the result as Markdown."""

import argparse
import datetime
import hashlib
import mmap
import os
import platform
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from pathlib import Path

# Importing these modules registers their checks, in the order of the result.
from . import memory, driver, libraries, whole_runs, overhead_parts  # noqa: F401, I001
from .harness import Harness
from .registry import CHECKS
from .verdicts import DIFFERENT, EQUAL, IMPOSSIBLE, MEASURED, Different, Impossible, Row, table

REPOSITORY = Path(__file__).resolve().parents[3]
RELEASE = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")) / "release"


def rows_of(harness, one):
    """Runs one check; returns at least one row, also if the check fails."""
    title = one.name + (", " + one.variant if one.variant else "")
    rows = []
    try:
        for given in one.function(harness, **one.options):
            part, verdict, detail, numbers = given if len(given) == 4 else (None,) + tuple(given)
            if harness.simulated and one.blind and verdict != DIFFERENT:
                verdict, detail = IMPOSSIBLE, "%s; rehearsed: %s" % (one.blind, detail)
            elif harness.simulated and verdict == MEASURED:
                detail = "SIMULATED: " + detail
            rows.append(Row(title + (": " + part if part else ""), verdict, detail, numbers))
    except Different as why:
        rows.append(Row(title, DIFFERENT, str(why), ""))
    except Impossible as why:
        rows.append(Row(title, IMPOSSIBLE, str(why), ""))
    except Exception as error:  # a broken check must not look like success
        rows.append(Row(title, DIFFERENT, "the check itself failed: %s: %s" % (type(error).__name__, error), ""))
    return rows or [Row(title, DIFFERENT, "the check itself has no result", "")]


def markdown(harness, rows, left):
    machine, args = harness.machine, harness.args
    kind = "SIMULATED: " if harness.simulated else ""
    version = subprocess.run([str(args.command), "--version"], stdout=subprocess.PIPE, universal_newlines=True).stdout.strip()
    digest = hashlib.sha256(args.library.read_bytes()).hexdigest()[:12]
    head = [
        ["date", datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")],
        ["GPU", "%s%s, %.1f GiB, compute capability %s" % (kind, machine["gpu"], machine["total"] / (1 << 30), machine["capability"])],
        ["driver", machine["driver"]],
        ["CUDA runtime", "%s (cuDNN %s, NCCL %s)" % (machine["runtime"], machine.get("cudnn"), machine.get("nccl"))],
        ["PyTorch", machine["torch"]],
        ["Python", machine["python"]],
        ["system", "%s, %s" % (platform.platform(), os.cpu_count() and "%d CPUs" % os.cpu_count())],
        ["gpumemtrace", "%s, library sha256 %s…" % (version.split()[-1] if version else "?", digest)],
    ]
    counts = Counter(row.verdict for row in rows)
    out = ["# Validation on a %s GPU" % ("SIMULATED" if harness.simulated else "real"), ""]
    if harness.simulated:
        out += ["> **SIMULATED.** This is a rehearsal of the script. Nothing below was measured on a GPU.", ""]
    out += [table(["", ""], head), ""]
    out += ["Made by `scripts/gpu-validate%s`. %s." % (" --quick" if args.quick else "",
            ", ".join("%d %s" % (counts[verdict], verdict) for verdict in (EQUAL, DIFFERENT, IMPOSSIBLE, MEASURED))), ""]
    if left:
        out += ["**Not finished**: %s." % ", ".join(left), ""]
    shown = {DIFFERENT: "**%s**" % DIFFERENT}
    out += [table(["check", "verdict", "detail"],
                  [[row.name, shown.get(row.verdict, row.verdict), " ".join(row.detail.split())] for row in rows])]
    for row in rows:
        if row.numbers:
            wrapped = (line if line.startswith("|") else textwrap.fill(line, 100) for line in row.numbers.split("\n"))
            out += ["", "## " + row.name, "", *wrapped]
    return "\n".join(out) + "\n"


def parse_arguments(description):
    names = list(dict.fromkeys(one.name for one in CHECKS))
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, metavar="PATH",
                        help="interpreter with PyTorch [default: this one]")
    parser.add_argument("--library", type=Path, default=RELEASE / "libgpumemtrace.so", metavar="PATH")
    parser.add_argument("--command", type=Path, default=RELEASE / "gpumemtrace", metavar="PATH")
    parser.add_argument("--output", type=Path, metavar="FILE", help="[default: docs/gpu-validation.md; none on a simulated GPU]")
    parser.add_argument("--only", metavar="NAME,..", help="comma-separated: " + ", ".join(names))
    parser.add_argument("--quick", action="store_true", help="fewer rounds: minutes instead of a quarter of an hour")
    args = parser.parse_args()
    args.library, args.command = args.library.resolve(), args.command.resolve()
    for path in (args.library, args.command):
        if not path.is_file():
            parser.error("%s is missing: build it (cargo build --release) or pass its path" % path)
    args.only = names if args.only is None else args.only.split(",")
    unknown = [name for name in args.only if name not in names]
    if unknown:
        parser.error("unknown check %s; known: %s" % (", ".join(unknown), ", ".join(names)))
    return args


def is_simulated(paths):
    """Finds the simulated driver by its variable names, which NVIDIA's does not contain."""
    for path in paths:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(b"SIMGPU_") >= 0:
                return True
    return False


def main(description):
    args = parse_arguments(description)
    with tempfile.TemporaryDirectory(prefix="gpu-validate-") as folder:
        harness = Harness(args, folder)
        try:
            harness.machine = harness.run_bare("machine")[-1]
        except (Impossible, OSError) as why:
            print("gpu-validate: cannot start with %s: %s" % (args.python, why), file=sys.stderr)
            return 2
        harness.simulated = is_simulated(harness.machine["libcuda"])
        if harness.simulated and args.output is None:
            print("gpu-validate: this GPU is SIMULATED; pass --output to write a rehearsal", file=sys.stderr)
            return 2
        output = args.output or REPOSITORY / "docs" / "gpu-validation.md"
        output.parent.mkdir(parents=True, exist_ok=True)
        chosen, rows = [one for one in CHECKS if one.name in args.only], []
        for number, one in enumerate(chosen):
            begin = time.monotonic()
            for row in rows_of(harness, one):
                print("%-36s %-18s %s" % (row.name, row.verdict, " ".join(row.detail.split())), flush=True)
                rows.append(row)
            print(" " * 36, "%.1f s" % (time.monotonic() - begin), flush=True)
            # Written after each check, so that an interrupted run keeps its results.
            left = list(dict.fromkeys(later.name for later in chosen[number + 1:]))
            output.write_text(markdown(harness, rows, left), encoding="utf-8")
    print("%s GPU; written to %s" % ("SIMULATED" if harness.simulated else "real", output))
    return 3 if any(row.verdict == DIFFERENT for row in rows) else 0
