"""Scans for holders during the run, when variables of functions still exist, in real PyTorch."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import COMMAND, PYTHONS, REPOSITORY, VENVS, WORKLOADS, Run, environment, gpumemtrace, run_program, sentences

PACKAGE = REPOSITORY / "python"
PROGRAM = WORKLOADS / "package/holder_moments.py"
#: The program runs until so many scans have ended.
SCANS = ["--scans", 1]


def command_line(torch_version, *arguments, options=()):
    python = Path(VENVS[torch_version]) / "bin" / "python"
    return list(map(str, [COMMAND, "run", "--holders", *options, "--", python, PROGRAM, *arguments]))


@pytest.fixture
def run_with_holders(torch_version, tmp_path):
    """Runs the program with `gpumemtrace run --holders`."""

    def run(*arguments, code=0, options=(), **extra):
        command = command_line(torch_version, *arguments, options=options)
        process = run_program(command, tmp_path, env=environment(tmp_path, traced=False, **extra))
        assert process.returncode == code, process.stdout[-2000:] + process.stderr[-4000:]
        return Run(process, tmp_path)

    return run


def only_leak(run):
    """Returns the leak, its holder, and the scan that found it."""
    report = run.report("--leaks")
    [leak] = report["leaks"]
    assert leak["holders"] is not None, [(scan["trigger"], scan["failed"]) for scan in report["holders"]]
    [holder] = leak["holders"]
    [scan] = [scan for scan in report["holders"] if scan["scan"] == leak["holder_coverage"]["scan"]]
    return leak, holder, scan


def reports_returns(torch_version):
    """Whether this Python has `sys.monitoring`."""
    python = Path(VENVS[torch_version]) / "bin" / "python"
    return subprocess.run([python, "-c", "import sys; sys.exit(sys.version_info < (3, 12))"]).returncode == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("where,name,chain", [
    ("main", "holder_moments.keep_in_main() local kept", ["tensor"]),
    ("method", "holder_moments.Trainer.fit() local self.history", ["tensor"]),
    ("closure", "holder_moments.keep_in_closure() local remember closure memory", ["tensor"]),
    ("generator", "holder_moments.keep_in_generator() local running <- holder_moments.keep_in_generator.<locals>.window()"
                  " local seen", ["tensor"]),
    ("coroutine", "holder_moments.keep_in_coroutine() local pending", ["tensor"]),
    ("worker", "holder_moments.keep_in_worker.<locals>.work() local results", ["tensor"]),
])
def test_holder_is_known_after_its_function_has_returned(run_with_holders, where, name, chain):
    run = run_with_holders(where, *SCANS)
    leak, holder, scan = only_leak(run)
    assert (holder["name"], holder["type_name"], holder["chain"]) == (name, "list", chain)
    assert holder["blocks"] == leak["holder_coverage"]["blocks"] and leak["holder_coverage"]["unresolved"] == []
    assert scan["trigger"] in ("interval", "return") and scan["failed"] is None and scan["step"] > 0
    assert f"Held by {name} (list, {holder['items']} items) -> tensor, as of step {scan['step']:,}." in sentences(
        gpumemtrace("replay", run.trace)
    )
    when = "during the run" if scan["trigger"] == "interval" else "when the main function returned"
    assert f"As of the holder scan {when}" in sentences(gpumemtrace("replay", run.trace, "--leaks"))


@pytest.mark.parametrize("where", ["main", "coroutine"])
def test_short_program_is_scanned_when_its_main_function_returns(run_with_holders, torch_version, where):
    if not reports_returns(torch_version):
        pytest.skip("CPython before 3.12 does not report the return of one function")
    leak, holder, scan = only_leak(run_with_holders(where, "--steps", 30))
    assert scan["trigger"] == "return" and holder["items"] == holder["blocks"] == leak["blocks"] == 30


def has_holders(trace):
    """Whether the recording has a scan already. A trace that was just made is empty."""
    shown = gpumemtrace("replay", trace, "--leaks", "--json", code=None) if trace.exists() else ""
    return bool(shown) and bool(json.loads(shown).get("holders"))


def test_killed_run_has_holders_of_its_last_scan(torch_version, tmp_path):
    process = subprocess.Popen(command_line(torch_version, "forever", "--steps", 10_000_000, *SCANS), cwd=tmp_path,
                               env=environment(tmp_path, traced=False), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        run, deadline = Run(process, tmp_path), time.monotonic() + 60
        while not has_holders(run.trace):
            assert time.monotonic() < deadline and process.poll() is None, "no scan"
            time.sleep(0.2)
        [child] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[:1]
        os.kill(int(child), signal.SIGKILL)
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGKILL
    leak, holder, scan = only_leak(run)
    assert holder["name"].endswith("keep_in_main() local kept") and scan["trigger"] == "interval"
    assert run.report()["traces"][0]["end"] == "killed"


@pytest.mark.slow("the run's share for scans is counted over 8 s")
def test_scans_stay_within_their_share_of_the_run(run_with_holders):
    """Counters of the scans: what each one was allowed, on top of what was spent before."""
    limit_s = 2.0  # a busy machine takes long to report
    run = run_with_holders("main", "--scans", 100, "--seconds", 8, options=["--holders-limit", limit_s])
    scans = [scan for scan in run.report("--leaks")["holders"] if scan["trigger"] == "interval"]
    assert scans, "no scan"
    spent_ns = 0
    for scan in scans:
        assert scan["spent_ns"] > spent_ns
        if scan["failed"] is None:
            allowed_ns = scan["report_ns"] + scan["limit_ns"]
            assert spent_ns + allowed_ns <= 0.01 * scan["elapsed_ns"] + limit_s * 1e9
        spent_ns = scan["spent_ns"]
    times = [scan["time_ns"] for scan in scans]
    assert all(later >= 1.4 * earlier for earlier, later in zip(times, times[1:])), "intervals do not grow"


def test_program_with_signals_threads_and_children_is_undisturbed(run_with_holders, torch_version, tmp_path):
    """Exceptions of signal handlers, `os.wait()`, threads and asyncio, while scans run."""
    run = run_with_holders("busy", "--scans", 2, code=3)
    assert sum(scan["trigger"] == "interval" for scan in run.report("--leaks")["holders"]) >= 2
    python = Path(VENVS[torch_version]) / "bin" / "python"
    plain = run_program([python, PROGRAM, "busy", "--steps", "100"], tmp_path, env=environment(tmp_path, traced=False))
    assert plain.returncode == 3 and run.process.stdout == plain.stdout
    assert "program: True" in plain.stdout and "others: none" in plain.stdout
    assert [line for line in run.process.stderr.splitlines() if not line.startswith("gpumemtrace: wrote")] == []


@pytest.mark.parametrize("where,name,limit", [
    ("deque", "holder_moments.deque", 1000),
    ("queue", "holder_moments.waiting.queue", 500),
    ("cache", "holder_moments.cached", 77),
])
def test_limit_of_container_is_reported(run_with_holders, where, name, limit):
    run = run_with_holders(where, "--steps", 30)
    report = run.report("--leaks")
    [growth] = report["leak_assessment"][0]["growth"]
    [holder] = growth["holders"]
    assert report["leaks"] == [] and growth["class"] == "filling", "it has a limit"
    assert (holder["name"], holder["items"], holder["limit_items"]) == (name, 30, limit)
    assert f"30 of at most {limit:,} items)" in sentences(gpumemtrace("replay", run.trace))


def test_summary_without_scan_names_the_option(run_python, torch_version):
    run = run_python(torch_version, PROGRAM, "main", "--steps", 30)
    assert "gpumemtrace run --holders" in gpumemtrace("replay", run.trace)


SAFE_POINT = """
import _thread, ctypes, signal, sys, threading, time
sys.path.insert(0, sys.argv[1])
from gpumemtrace._holders.safe_point import SafePoint

point = SafePoint()
seen, results = [], {}

def stop(name, limit_s, hold_s):
    pause = point.request(limit_s)
    results[name] = [pause.has_arrived(20), pause.is_refused]
    before = len(seen)
    time.sleep(hold_s)
    results[name].append(len(seen) - before)
    pause.end()

def run_beside(*arguments):
    other = threading.Thread(target=stop, args=arguments)
    other.start()
    while other.is_alive():
        seen.append(None)
    other.join()

run_beside("stopped", 60, 0.3)
assert results["stopped"] == [True, False, 0], results
run_beside("limit", 0.05, 0.5)
assert results["limit"][:2] == [True, False] and results["limit"][2] > 0, results

def on_signal(number, frame):
    run_beside("handler", 60, 0.05)
signal.signal(signal.SIGUSR1, on_signal)
signal.raise_signal(signal.SIGUSR1)
assert results["handler"][:2] == [True, True], results

class Stop(Exception): pass
def on_alarm(number, frame):
    raise Stop
signal.signal(signal.SIGALRM, on_alarm)
try:
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    run_beside("raised", 60, 1)
    raise AssertionError("the exception was swallowed")
except Stop:
    pass

# Nothing ends this one: the limit does.
point.request(0.1)
print("passed")
"""


@pytest.mark.parametrize("python", sorted({sys.executable, *PYTHONS, *(f"{venv}/bin/python" for venv in VENVS.values())}))
def test_main_thread_stops_between_bytecodes_and_passes_exceptions_on(python):
    """It waits for the scan or the limit, not inside a signal handler."""
    done = subprocess.run([python, "-c", SAFE_POINT, PACKAGE], capture_output=True, text=True, timeout=120)
    assert done.stdout == "passed\n", done.stderr
