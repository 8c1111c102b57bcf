#!/usr/bin/env python3
"""Runs the corpus of real PyTorch programs and prints what gpumemtrace says of each.

usage: scripts/accuracy/run_programs.py --python PYTHON [options]

Each program in scripts/accuracy/programs/FAMILY/ has a header with its kind and a mark `# leak` on
the line that a report must name (`corpus/programs.py` defines both). The truth is measured, not
assumed: each program runs once without the recorder and writes PyTorch's own live bytes at its step
ends (`probe/probe.py`). A program that contradicts its header is an error. Then it runs under
`gpumemtrace run`, and the JSON of `gpumemtrace replay` is compared with the truth.

PYTHON is an environment with PyTorch for CUDA on a machine with a GPU, or one that
scripts/simgpu-venv made. Prints Markdown and writes all results to OUT/programs-ALLOCATOR.json.
Exits with 1 if a program fails or its header is wrong; with --strict also for each wrong result.
"""

import argparse
import hashlib
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE))

from corpus import tables  # noqa: E402
from corpus.judge import judge  # noqa: E402
from corpus.programs import all_programs, sample_of  # noqa: E402
from corpus.runs import ALLOCATORS, Runner, RunFailed, missing_modules  # noqa: E402

TARGET = HERE.parent.parent / "target"
# Forecasts: free memory for the leak, and the most steps that may pass until it is full.
FORECAST_BYTES = 128 << 20
FORECAST_STEPS = 3000
MIB = 1 << 20


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="a Python with PyTorch")
    parser.add_argument("--python-path", action="append", default=[], metavar="DIR", help="folder with more libraries (repeatable)")
    parser.add_argument("--gpumemtrace", default=TARGET / "release" / "gpumemtrace", help="the binary to measure")
    parser.add_argument("--library", help="preload this libgpumemtrace.so, instead of the one that `gpumemtrace run` finds")
    parser.add_argument("--out", default=TARGET / "accuracy", help="folder for results and measured truths")
    parser.add_argument("--allocator", choices=ALLOCATORS, default="default")
    parser.add_argument("--lengths", choices=["first", "all"], default="first", help="lengths of each program to run")
    parser.add_argument("--kill-half", action="store_true", help="end each recorded run with SIGKILL after half of its steps")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="run N times; results must be equal, and reports of one trace too")
    parser.add_argument("--forecast", action="store_true", help="also run large leaks until the GPU is full")
    parser.add_argument("--only", action="append", metavar="NAME", help="programs and families with NAME in their name (repeatable)")
    parser.add_argument("--sample", type=int, metavar="N", help="a fixed sample of N programs")
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--keep", action="store_true", help="keep the traces, in OUT/traces")
    parser.add_argument("--truth-only", action="store_true", help="measure the programs, record nothing")
    parser.add_argument("--list", action="store_true", help="list the programs")
    parser.add_argument("--brief", action="store_true", help="print totals, and wrong results that the default allocator did not have")
    parser.add_argument("--strict", action="store_true",
                        help="exit with 1 for each result that is not the best one, unless the program's header has a `limit`")
    parser.add_argument("--run-option", action="append", default=[], metavar="OPTION", help="option of `gpumemtrace run` (repeatable)")
    parser.add_argument("--replay-option", action="append", default=[], metavar="OPTION", help="option of `gpumemtrace replay` (repeatable)")
    args = parser.parse_args()
    args.gpumemtrace = str(Path(args.gpumemtrace).resolve())
    args.library = args.library and str(Path(args.library).resolve())
    # Not resolved: the path of an environment's Python is a link.
    args.python = os.path.abspath(args.python)
    return args


def measure(runner, program, steps, args):
    """Returns the row of results of one program at one length."""
    truth = runner.truth(program, steps)
    if truth.problems:
        raise RunFailed("the header is wrong: " + "; ".join(truth.problems))
    if args.kill_half:
        truth = runner.truth(program, steps, done=steps // 2)
    done = len(truth.values)
    row = {"program": program.full_name, "family": program.family, "kind": program.kind, "length": steps, "done": done,
           "limit": program.limit, "events": program.events(steps, done)}
    if args.truth_only:
        return {**row, "result": "measured", "truth": truth.rate}
    verdicts = []
    for _ in range(args.repeat):
        report, text, seconds = runner.report(program, steps)
        verdicts.append(judge(program, truth, report))
    row |= verdicts[0] | {"seconds": round(seconds, 1), "report_sha256": hashlib.sha256(text.encode()).hexdigest()}
    texts = sorted({summary(verdict) for verdict in verdicts})
    if len(texts) > 1:
        row["unstable"] = f"{args.repeat} runs gave different results: " + "; ".join(texts)
    if args.forecast and program.kind == "leak" and not program.memory and program.begins is None:
        row["forecast"] = forecast(runner, program, steps, truth)
    return row


def summary(verdict):
    """What must be equal in two runs of one program."""
    findings = ", ".join(f"{leak['line']} {leak['shape']}" for leak in verdict["leaks"])
    status = ", ".join(str(one["status"]) for one in verdict["assessment"])
    return f"{verdict['result']} ({findings or verdict['class'] or 'nothing'}) {status} {verdict['steps']['count']} steps".replace("  ", " ")


def forecast(runner, program, steps, truth):
    """Compares the forecast with a run on a GPU that the leak fills; None for slow leaks."""
    room = max(FORECAST_BYTES, truth.rate * steps)
    full_steps = int(1.5 * (steps + room / truth.rate))
    if full_steps > FORECAST_STEPS:
        return None
    memory = int(truth.peak + room) // (2 * MIB) * 2 * MIB
    full_at = runner.truth(program, full_steps, memory).full_at
    report, _, _ = runner.report(program, steps, memory)
    predicted = next((leak["oom_step"] for leak in report["leaks"] if leak.get("oom_step")), None)
    return {"full_at": full_at, **predicted} if predicted and full_at else None


def is_best(row):
    if row.get("limit") or row["kind"] == "leak" and row["events"] < tables.FEW_EVENTS:
        return True
    if row.get("unstable"):
        return False
    return row["result"] in ("line first", "measured") if row["kind"] == "leak" else row["result"] != "alarm"


def main():
    args = parse_arguments()
    programs = all_programs()
    if args.only:
        programs = [one for one in programs if any(part in one.full_name for part in args.only)]
    if args.sample:
        programs = sample_of(programs, args.sample)
    if args.list:
        for program in programs:
            print(f"{program.kind:8} {program.full_name:44} {' '.join(map(str, program.lengths))}")
        return 0
    needed = sorted({name for program in programs for name in program.needs})
    missing = missing_modules(args.python, args.python_path, needed) if needed else set()
    failures = {one.full_name: "not installed: " + ", ".join(missing & set(one.needs)) for one in programs if missing & set(one.needs)}
    programs = [one for one in programs if not missing & set(one.needs) and args.allocator not in one.without]
    runner, began, rows, errors = Runner(args), time.monotonic(), [], 0

    def attempt(work):
        program, steps = work
        try:
            return measure(runner, program, steps, args)
        except RunFailed as failure:
            return f"{program.full_name}, {steps} steps", str(failure)

    work = [(program, steps) for program in programs for steps in (program.lengths if args.lengths == "all" else program.lengths[:1])]
    if args.kill_half:
        # A leak that has not begun by then is no leak.
        work = [(program, steps) for program, steps in work if program.kind != "leak" or program.events(steps, steps // 2)]
    with ThreadPoolExecutor(args.jobs) as pool:
        for done, row in enumerate(pool.map(attempt, work), 1):
            if isinstance(row, tuple):
                failures[row[0]] = row[1]
                errors += 1
                print(f"{row[0]}: {row[1]}", file=sys.stderr)
                continue
            rows.append(row)
            print(f"{done}/{len(work)} {row['kind']:8} {row['program']} {row['length']}: {row['result']}", file=sys.stderr, flush=True)
    file = runner.out / f"programs-{args.allocator}{'-killed' if args.kill_half else ''}.json"
    file.write_text(json.dumps({"allocator": args.allocator, "killed": args.kill_half, "runs": rows, "failures": failures}, indent=1) + "\n")
    if not args.truth_only:
        usual = runner.out / "programs-default.json"
        known = json.loads(usual.read_text())["runs"] if args.brief and usual.exists() else []
        print(tables.brief(rows, failures, known) if args.brief else tables.markdown(rows, failures))
    print(f"{len(rows)} runs in {time.monotonic() - began:.0f} s; all results: {file}", file=sys.stderr)
    return int(bool(errors) or (args.strict and not all(map(is_best, rows))))


if __name__ == "__main__":
    sys.exit(main())
