"""The long checks of `scripts/nightly`. To add one: a function and a row in CHECKS."""

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from . import host_runs
from .commands import NotPossible, call
from .hosts import REPOSITORY, TARGET, TORCH
from .results import FOLDER

#: The releases of tests/allocator-oracle/RULES.md.
ALLOCATOR_RELEASES = (REPOSITORY / "tests" / "allocator-oracle" / "releases.txt").read_text().split()


@dataclass(frozen=True)
class Check:
    """One row of the table."""

    name: str
    title: str
    #: Hours at full scale on four cores.
    hours: float
    command: str
    #: What `inputs` counts.
    unit: str
    #: Takes (scale, options), returns a dict with `inputs`, `losses`, and details of its own.
    run: Callable


def soak(options, *arguments):
    result = TARGET / "soak" / "result.json"
    result.parent.mkdir(parents=True, exist_ok=True)
    result.unlink(missing_ok=True)
    python = ["--python", options.python] if options.python else []
    code, _ = call(REPOSITORY / "scripts" / "soak", "--seed", options.seed, "--result", result, *python, *arguments)
    if not result.exists():
        raise RuntimeError(f"scripts/soak exited with {code} and has no result")
    return json.loads(result.read_text())


def kills(scale, options):
    found = soak(options, "--kills", max(1, round(1000 * scale)), "--log", FOLDER / "kills.log")
    return {"inputs": found["kills"], "losses": found["unreported"] + found["failed"], **found}


def load(scale, options):
    found = soak(options, "--minutes", max(0.5, 60 * scale))
    events = sum(row.get("events", 0) for row in found["hosts"])
    return {"inputs": events, "losses": found["lost"] + found["failed"], **found}


def traces(scale, options):
    found = soak(options, "--traces", max(1, round(20_000 * scale)))
    return {"inputs": found["traces"], "losses": found["failed"], **found}


def fuzz(scale, options):
    """Fuzzes each target; the corpus keeps inputs that reach new code (`scripts/fuzz --keep`)."""
    script, seconds = REPOSITORY / "scripts" / "fuzz", max(1, round(3600 * scale))
    code, listed = call(script, "--list")
    if code:
        raise NotPossible(listed.strip().split("\n")[-1])
    keep = ["--keep"] if options.keep else []

    def one(target):
        began = time.monotonic()
        code, output = call(script, "--seconds", seconds, *keep, target)
        numbers = re.search(r"(\d+) inputs tried, +(\d+) edges, +(\d+) in the corpus", output)
        inputs, edges, corpus = map(int, numbers.groups()) if numbers else (0, 0, 0)
        return {"target": target, "seconds": min(seconds, round(time.monotonic() - began)), "inputs": inputs, "edges": edges, "corpus": corpus,
                "crashed": code != 0}

    with ThreadPoolExecutor(options.jobs) as pool:
        targets = list(pool.map(one, listed.split()))
    return {"inputs": sum(one["inputs"] for one in targets), "losses": sum(one["crashed"] for one in targets), "seconds_each": seconds,
            "targets": targets}


def cargo_test(*arguments, **variables):
    """Runs tests and returns (passed, failed)."""
    code, output = call("cargo", *arguments, **variables)
    counts = [tuple(map(int, found)) for found in re.findall(r"(\d+) passed; (\d+) failed", output)]
    if not counts:
        raise RuntimeError(f"cargo exited with {code} and ran no test")
    passed, failed = map(sum, zip(*counts))
    return passed, max(failed, int(code != 0))


def damage(scale, options):
    passed, failed = cargo_test("test", "--release", "-p", "gpumemtrace-replay", "--test", "tests", "damage::", "--", "--nocapture", GPUMEMTRACE_EVERY_BIT=1)
    return {"scale": 1, "inputs": passed, "losses": failed}


def snapshots(scale, options):
    mutations = max(1, round(100_000 * scale))
    passed, failed = cargo_test("test", "--release", "-p", "gpumemtrace-torch-snapshot", GPUMEMTRACE_MUTATIONS=mutations)
    return {"inputs": mutations, "losses": failed, "tests": passed}


def properties(scale, options):
    """Each round draws new cases: proptest seeds itself anew."""
    packages = ["-p", "gpumemtrace-format", "-p", "gpumemtrace-recorder", "-p", "gpumemtrace-replay"]
    rounds, cases, passed, failed = max(1, round(20 * scale)), max(256, round(20_000 * scale)), 0, 0
    for _ in range(rounds):
        now = cargo_test("test", "--release", "--no-fail-fast", *packages, "--", "--skip", "every_line_of_the_protocol_is_needed", PROPTEST_CASES=cases)
        passed, failed = passed + now[0], failed + now[1]
    return {"inputs": passed, "losses": failed, "rounds": rounds, "cases": cases}


def interleavings(scale, options):
    """The models of the ring protocol, with more preemptions than `scripts/test` allows."""
    preemptions = 8 if scale >= 0.5 else 6
    passed, failed = cargo_test("test", "--release", "-p", "gpumemtrace-recorder", "--test", "protocol_model", "--", "--skip",
                                "every_line_of_the_protocol_is_needed", LOOM_MAX_PREEMPTIONS=preemptions)
    return {"inputs": passed, "losses": failed, "preemptions": preemptions}


def miri(scale, options):
    if subprocess.run(["cargo", "+nightly", "miri", "--version"], capture_output=True).returncode:
        raise NotPossible("Miri is not installed (rustup +nightly component add miri)")
    passed, failed = cargo_test("+nightly", "miri", "test", "--lib", "-p", "gpumemtrace-format", "-p", "gpumemtrace-recorder",
                                MIRIFLAGS="-Zmiri-disable-isolation")
    return {"scale": 1, "inputs": passed, "losses": failed}


def processes(scale, options):
    pair = [f"{TORCH}={os.path.dirname(os.path.dirname(options.python))}"] if options.python else []
    code, output = call(REPOSITORY / "scripts" / "checks" / "processes", *pair)
    passed = re.search(r"(\d+) passed", output)
    return {"scale": 1, "inputs": int(passed[1]) if passed else 0, "losses": int(code != 0)}


def allocator(scale, options):
    """The last patch of each release of PyTorch, 100 million requests over all rows of settings."""
    script, requests = REPOSITORY / "scripts" / "checks" / "allocator-oracle", max(1000, round(100_000_000 * scale))
    wheels = TARGET / "allocator-oracle" / "wheels"
    code, _ = call(REPOSITORY / "scripts" / "setup" / "allocators")
    folders = [wheels / release for release in ALLOCATOR_RELEASES if (wheels / release / "torch" / "version.py").exists()]
    if not folders:
        raise NotPossible("no release of PyTorch can be downloaded")
    compared, versions, failed = 0, [], int(code != 0)
    for folder in folders:
        code, output = call(script, "--all", "--packages", folder, "--total", requests, "--seed", options.seed)
        found = re.findall(r"^torch ([\d.]+): (\d+) requests, ", output, re.M)
        versions.append(found[0][0] if found else folder.name)
        compared += sum(int(count) for _, count in found)
        failed += int(code != 0)
    return {"inputs": compared, "losses": failed, "versions": versions, "missing": sorted({*ALLOCATOR_RELEASES} - {folder.name for folder in folders})}


def predictions(scale, options):
    """Every PyTorch below target/; below a quarter of the full length, a few programs."""
    quick = ["--quick"] if scale < 0.25 else []
    if not any(TARGET.glob("venvs/torch-*/bin/python")):
        raise NotPossible("no PyTorch below target/: run scripts/test, or scripts/simgpu-venv")
    code, output = call(REPOSITORY / "scripts" / "checks" / "whatif", "--jobs", options.jobs, *quick)
    total = re.search(r"^(\d+) rows of \d+ recorded runs: (\d+) exact, (\d+) differ from the real run, (\d+) errors", output, re.M)
    if not total:
        raise RuntimeError(f"scripts/checks/whatif exited with {code} and compared nothing")
    rows, exact, differing, errors = map(int, total.groups())
    return {"scale": 0.1 if quick else 1, "inputs": rows, "losses": errors, "exact": exact, "differing": differing}


def suites(scale, options):
    """scripts/test, with what takes too long for CI: each case with every PyTorch, and more."""
    code, output = call(REPOSITORY / "scripts" / "test", GPUMEMTRACE_FULL=1)
    passed = [int(count) for count in re.findall(r"(\d+) passed", output)]
    return {"scale": 1, "inputs": sum(passed), "losses": int(code != 0)}


CHECKS = [
    Check("kills", "SIGKILL at random moments", 0.6, "scripts/soak --kills 1000", "kills", kills),
    Check("host", "host programs, untraced and traced", 0.2, "pytest tests/suite/host", "runs", host_runs.run),
    Check("load", "several programs at once", 1, "scripts/soak --minutes 60", "events", load),
    Check("fuzz", "fuzzing of each reader", 5.5, "scripts/fuzz --seconds 3600 --keep TARGET", "inputs", fuzz),
    Check("traces", "changed traces, read by every command", 1, "scripts/soak --traces 20000", "files", traces),
    Check("damage", "every bit flipped, every truncation", 0.1, "GPUMEMTRACE_EVERY_BIT=1 cargo test -p gpumemtrace-replay damage", "tests", damage),
    Check("snapshots", "changed snapshots of PyTorch, and hostile ones", 0.02,
          "GPUMEMTRACE_MUTATIONS=100000 cargo test --release -p gpumemtrace-torch-snapshot", "mutations", snapshots),
    Check("properties", "property tests with more cases", 1.5, "PROPTEST_CASES=20000 cargo test, 20 times", "tests", properties),
    Check("interleavings", "models of the ring protocol, more preemptions", 0.3, "LOOM_MAX_PREEMPTIONS=8 cargo test --test protocol_model", "models", interleavings),
    Check("miri", "undefined behaviour in the format and the recorder", 0.5, "cargo +nightly miri test --lib", "tests", miri),
    Check("allocator", "the model of PyTorch's allocator, 15 releases", 1.5, "scripts/checks/allocator-oracle --all --total 100000000", "requests", allocator),
    Check("whatif", "predictions of other settings", 0.7, "scripts/checks/whatif", "predictions", predictions),
    Check("suites", "all suites with every PyTorch, and more", 2, "GPUMEMTRACE_FULL=1 scripts/test", "tests", suites),
    Check("processes", "8 ranks, 64 threads, 1,000 forks", 0.3, "scripts/checks/processes", "tests", processes),
]
