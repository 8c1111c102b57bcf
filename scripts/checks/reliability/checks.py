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

#: The releases of tests/allocator-oracle/RULES.md.
ALLOCATOR_RELEASES = (REPOSITORY / "tests" / "allocator-oracle" / "releases.txt").read_text().split()


@dataclass(frozen=True)
class Check:
    """One row of the table."""

    name: str
    title: str
    #: Minutes at full length on two cores; the last result on such a machine is preferred.
    minutes: float
    #: Smallest useful share of the full length; 1 if the length is fixed.
    least: float
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
    found = soak(options, "--kills", max(1, round(1000 * scale)), "--log", TARGET / "soak" / "kills.log")
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
    code, output = call(script, "--possible")
    if code:
        raise NotPossible(output.strip().split("\n")[-1])
    keep = ["--keep"] if options.keep else []
    code, output = call(script, "--seconds", seconds, "--jobs", options.jobs, *keep)
    crashed = set(re.findall(r"crashed: (.+)", output)[-1].split()) if code and "crashed: " in output else set()
    numbers = re.findall(r"^(\w+) +([\d?]+) inputs tried, +([\d?]+) edges, +([\d?]+) in the corpus", output, re.M)
    number = lambda text: 0 if text == "?" else int(text)
    targets = [{"target": target, "seconds": seconds, "inputs": number(inputs), "edges": number(edges), "corpus": number(corpus),
                "crashed": target in crashed} for target, inputs, edges, corpus in numbers]
    return {"inputs": sum(one["inputs"] for one in targets), "losses": max(len(crashed), int(code != 0)), "seconds_each": seconds, "targets": targets}


def cargo_test(*arguments, **variables):
    """Runs tests and returns (passed, failed)."""
    code, output = call("cargo", *arguments, **variables)
    counts = [tuple(map(int, found)) for found in re.findall(r"(\d+) passed; (\d+) failed", output)]
    passed, failed = map(sum, zip(*counts)) if counts else (0, 0)
    if not passed + failed:
        raise RuntimeError(f"cargo exited with {code} and ran no test")
    return passed, max(failed, int(code != 0))


def passed_tests(output):
    """Sums the tests that pytest or cargo reports as passed."""
    return sum(map(int, re.findall(r"(\d+) passed", output)))


def damage(scale, options):
    passed, failed = cargo_test("test", "--release", "-p", "gpumemtrace-replay", "--test", "tests", "damage::", "--", "--nocapture", GPUMEMTRACE_EVERY_BIT=1)
    return {"inputs": passed, "losses": failed}


def snapshots(scale, options):
    mutations = max(1, round(100_000 * scale))
    passed, failed = cargo_test("test", "--release", "-p", "gpumemtrace-torch-snapshot", GPUMEMTRACE_MUTATIONS=mutations)
    return {"inputs": mutations, "losses": failed, "tests": passed}


def properties(scale, options):
    """Each round draws new cases: proptest seeds itself anew."""
    packages = ["-p", "gpumemtrace-format", "-p", "gpumemtrace-recorder", "-p", "gpumemtrace-replay"]
    rounds, cases, passed, failed = max(1, round(20 * scale)), 20_000, 0, 0
    for _ in range(rounds):
        now = cargo_test("test", "--release", "--no-fail-fast", *packages, "--", "--skip", "every_line_of_the_protocol_is_needed", PROPTEST_CASES=cases)
        passed, failed = passed + now[0], failed + now[1]
    return {"inputs": passed, "losses": failed, "rounds": rounds, "cases": cases}


def interleavings(scale, options):
    """The models of the ring protocol, with more preemptions than `scripts/test` allows."""
    preemptions = 8 if scale >= 1 else 6
    passed, failed = cargo_test("test", "--release", "-p", "gpumemtrace-recorder", "--test", "protocol_model", "--", "--skip",
                                "every_line_of_the_protocol_is_needed", LOOM_MAX_PREEMPTIONS=preemptions)
    return {"scale": 1 if scale >= 1 else 0.1, "inputs": passed, "losses": failed, "preemptions": preemptions}


def miri(scale, options):
    if subprocess.run(["cargo", "+nightly", "miri", "--version"], capture_output=True).returncode:
        raise NotPossible("Miri is not installed (rustup +nightly component add miri)")
    passed, failed = cargo_test("+nightly", "miri", "test", "--lib", "-p", "gpumemtrace-format", "-p", "gpumemtrace-recorder",
                                MIRIFLAGS="-Zmiri-disable-isolation")
    return {"inputs": passed, "losses": failed}


def processes(scale, options):
    pair = [f"{TORCH}={os.path.dirname(os.path.dirname(options.python))}"] if options.python else []
    code, output = call(REPOSITORY / "scripts" / "checks" / "processes", *pair)
    return {"inputs": passed_tests(output), "losses": int(code != 0)}


def matrix(scale, options):
    """Writes docs/coverage-matrix.md, too."""
    code, output = call(REPOSITORY / "scripts" / "checks" / "matrix")
    return {"inputs": passed_tests(output), "losses": int(code != 0)}


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
    """Every PyTorch below target/; below the full length, a few programs."""
    quick = ["--quick"] if scale < 1 else []
    if not any(TARGET.glob("venvs/torch-*/bin/python")):
        raise NotPossible("no PyTorch below target/: run scripts/test, or scripts/simgpu-venv")
    if call("cargo", "build", "--release", "--quiet", "--workspace")[0]:
        raise RuntimeError("the release build failed")
    code, output = call(REPOSITORY / "scripts" / "checks" / "whatif", "--jobs", options.jobs, *quick, GPUMEMTRACE_BUILD=TARGET / "release")
    total = re.search(r"^(\d+) rows of \d+ recorded runs: (\d+) exact, (\d+) differ from the real run, (\d+) errors", output, re.M)
    if not total:
        raise RuntimeError(f"scripts/checks/whatif exited with {code} and compared nothing")
    rows, exact, differing, errors = map(int, total.groups())
    return {"scale": 0.1 if quick else 1, "inputs": rows, "losses": errors, "exact": exact, "differing": differing}


def long_part(*words, count=passed_tests):
    """A part of scripts/test that takes too long for every change."""

    def run(scale, options):
        code, output = call(REPOSITORY / "scripts" / "test", "--long", *words)
        skipped = re.findall("^   (.+)", output.partition("== skipped checks\n")[2], re.M)
        if code == 0 and not count(output):
            raise NotPossible("; ".join(skipped) or "no test ran")
        return {"inputs": count(output), "losses": int(code != 0), "skipped": skipped}

    return run


def counted_paths(output):
    """Counts the paths that scripts/checks/budgets compares."""
    return len(re.findall(r" [+-]\d+\.\d%$", output, re.M))


#: Folders of tests/suite, with minutes and title. The check `host` runs tests/suite/host.
SUITES = {
    "allocator": (10, "all cases"),
    "analysis": (25, "all cases"),
    "apple": (5, "all cases"),
    "capture": (20, "all cases"),
    "cli": (15, "all cases, with Ray"),
    "docs": (10, "all cases"),
    "durability": (20, "all cases"),
    "export": (15, "all cases, with other readers"),
    "sql": (20, "all cases, with Spark"),
    "package": (15, "all cases, with trainers and notebooks"),
    "page": (25, "all cases, with each kind of trace"),
    "simulate": (25, "all cases"),
    "stacks": (10, "all cases"),
}

CHECKS = [
    Check("kills", "SIGKILL at random moments", 36, 0.02, "scripts/soak --kills 1000", "kills", kills),
    Check("host", "host programs, untraced and traced", 12, 1, "scripts/test --long suites host", "runs", host_runs.run),
    Check("load", "several programs at once", 60, 0.05, "scripts/soak --minutes 60", "events", load),
    Check("fuzz", "fuzzing of each reader", 660, 0.01, "scripts/fuzz --seconds 3600 --keep", "inputs", fuzz),
    Check("traces", "changed traces, read by every command", 180, 0.01, "scripts/soak --traces 20000", "files", traces),
    Check("damage", "every bit flipped, every truncation", 20, 1, "GPUMEMTRACE_EVERY_BIT=1 cargo test -p gpumemtrace-replay --test tests damage", "tests", damage),
    Check("snapshots", "changed snapshots of PyTorch, and hostile ones", 2, 0.1,
          "GPUMEMTRACE_MUTATIONS=100000 cargo test --release -p gpumemtrace-torch-snapshot", "mutations", snapshots),
    Check("properties", "property tests with more cases", 90, 0.05, "PROPTEST_CASES=20000 cargo test, 20 times", "tests", properties),
    Check("interleavings", "models of the ring protocol, more preemptions", 18, 0.1, "LOOM_MAX_PREEMPTIONS=8 cargo test --test protocol_model", "models", interleavings),
    Check("miri", "undefined behaviour in the format and the recorder", 30, 1, "cargo +nightly miri test --lib", "tests", miri),
    Check("allocator", "the model of PyTorch's allocator, 15 releases", 150, 0.01, "scripts/checks/allocator-oracle --all --total 100000000", "requests", allocator),
    Check("matrix", "PyTorch's releases and allocators", 30, 1, "scripts/checks/matrix", "cells", matrix),
    Check("whatif", "predictions of other settings", 60, 0.1, "scripts/checks/whatif", "predictions", predictions),
    Check("processes", "8 ranks, 64 threads, 1,000 forks", 15, 1, "scripts/checks/processes", "tests", processes),
    *(Check(f"suites-{folder}", title, minutes, 1, f"scripts/test --long suites {folder}", "tests", long_part("suites", folder))
      for folder, (minutes, title) in SUITES.items()),
    Check("wheel", "the wheel for glibc 2.17", 15, 1, "scripts/test --long wheel", "tests", long_part("wheel")),
    Check("free-threaded", "a free-threaded CPython", 15, 1, "scripts/test --long free-threaded", "tests", long_part("free-threaded")),
    Check("mac", "library and wheel for macOS", 10, 1, "scripts/test --long mac", "tests", long_part("mac")),
    Check("metal", "Metal's hooks under an Objective-C runtime", 5, 1, "scripts/test --long metal", "tests", long_part("metal")),
    Check("budgets", "instruction budgets of the release build", 15, 1, "scripts/test --long budgets", "paths", long_part("budgets", count=counted_paths)),
]
