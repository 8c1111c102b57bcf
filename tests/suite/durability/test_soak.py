"""The long checks themselves: `scripts/soak` passes in a short form, and its oracle detects a lost,
an invented and a misplaced call."""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from conftest import COMMAND, REPOSITORY

sys.path.insert(0, str(REPOSITORY / "scripts" / "checks"))

from reliability import checks, host_runs, hosts, kills, oracle, results  # noqa: E402

HOSTS = ["storm-4", "forks", "rotate", "rotate-limit", "slow-disk"]


def soak(folder, *arguments):
    names = [word for name in HOSTS for word in ("--host", name)]
    return subprocess.run([REPOSITORY / "scripts" / "soak", "--no-build", "--python", sys.executable, "--log", folder / "log", "--result",
                           folder / "result.json", *names, *map(str, arguments)], capture_output=True, text=True)


@pytest.mark.slow("kills five programs")
def test_killed_programs_lose_no_call(tmp_path):
    done = soak(tmp_path, "--kills", len(HOSTS), "--seed", 11)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["kills"], result["unreported"], result["failed"]) == (len(HOSTS), 0, 0)
    assert result["calls"] > 100
    rows = [line.split() for line in (tmp_path / "log").read_text().splitlines() if line and not line.startswith("#")]
    assert {row[1] for row in rows} == set(HOSTS) and sum(row[-1] == "ok" for row in rows) == len(HOSTS)


def test_seed_decides_hosts_and_moments():
    choices = lambda seed: [kills.choose(seed, number, 0, hosts.ORDER) for number in range(100)]
    assert choices(1) == choices(1) != choices(2)
    moments = {moment for _, moment, _ in choices(1)}
    assert moments == {"run", "start", "exit", "fork", "rotation", "file call"}
    assert {host.name for host, _, _ in choices(1)} == set(hosts.BY_NAME)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A killed run of several threads: its folder and its process."""
    programs = hosts.Programs(sys.executable)
    programs.build(cargo=False)
    folder = tmp_path_factory.mktemp("killed")
    host, log = dataclasses.replace(hosts.BY_NAME["storm-4"], arguments=(4, 600_000)), folder / "driver.log"
    with subprocess.Popen(programs.command(host), cwd=folder, env=programs.environment(host, folder), stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and not (log.exists() and log.stat().st_size > 200_000):
            time.sleep(0.01)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    return folder, process.pid


def changed_log(lines):
    """Ways to change the log so that the trace disagrees with it."""
    calls = [number for number, line in enumerate(lines) if " cuMemAlloc_v2 " in line]
    middle = calls[len(calls) // 2]
    thread = lines[middle].split()[2]
    later = next(number for number in calls if number > middle and lines[number].split()[2] == thread)
    numbered = lambda changed: [f"{number} {line.split(' ', 1)[1]}" for number, line in enumerate(changed, 1)]
    swapped = list(lines)
    swapped[middle], swapped[later] = swapped[later], swapped[middle]
    return {
        "lost": numbered([*lines, *[line for line in lines if line.split()[2] == thread][-3:]]),
        "invented": numbered(lines[:middle] + lines[middle + 1:]),
        "misplaced": numbered(swapped),
        "gap in the log": lines[:middle] + lines[middle + 1:],
    }


@pytest.mark.parametrize("change", ["lost", "invented", "misplaced", "gap in the log"])
def test_oracle_detects(killed, tmp_path, change):
    folder, pid = killed
    log = tmp_path / "driver.log"
    lines = (folder / "driver.log").read_text().split("\n")[:-1]
    log.write_text("\n".join(lines) + "\n")
    assert oracle.compare(COMMAND, folder / "run.trace", log, pid).missing == 0
    log.write_text("\n".join(changed_log(lines)[change]) + "\n")
    with pytest.raises(oracle.Wrong):
        oracle.compare(COMMAND, folder / "run.trace", log, pid)


def test_oracle_accepts_a_block_that_the_kill_cut(tmp_path):
    """A kill in each of the first file calls. Some leave half a block of metadata: no call is lost."""
    programs, host = hosts.Programs(sys.executable), hosts.BY_NAME["storm-4"]
    programs.build(cargo=False)
    outcomes = []
    for number in range(1, 31):
        folder = tmp_path / str(number)
        folder.mkdir()
        env = programs.environment(host, folder, SOAK_KILL_AT=str(number))
        with subprocess.Popen(programs.command(host), cwd=folder, env=env, stdout=subprocess.DEVNULL) as process:
            pass
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL
        outcomes.append(oracle.compare(COMMAND, folder / "run.trace", folder / "driver.log", process.pid, torn_write=True))
        if outcomes[-1].is_cut:
            with pytest.raises(oracle.Wrong, match="incomplete"):
                oracle.compare(COMMAND, folder / "run.trace", folder / "driver.log", process.pid)
    assert any(outcome.is_cut for outcome in outcomes) and any(outcome.complete for outcome in outcomes)


ALLOC, FREE = ("cuMemAlloc_v2", "0", "0x10", 512), ("cuMemFree_v2", "0", "0x10", 0)


@pytest.mark.parametrize("known, calls, in_flight, missing", [
    ([], [ALLOC], [ALLOC], (0, [], [ALLOC])),
    ([], [FREE, ALLOC], [ALLOC], (1, [], [ALLOC])),
    ([ALLOC], [ALLOC, FREE], [FREE], (0, [], [FREE])),
    ([ALLOC], [ALLOC, ALLOC], [ALLOC], (0, [], [ALLOC])),
    # The call in flight is not logged yet.
    ([FREE], [ALLOC, FREE], [ALLOC], (1, [], [])),
    ([], [ALLOC], [FREE], (1, [], [])),
    ([], [ALLOC], [], (1, [], [])),
    ([FREE], [FREE, FREE], [], (1, [], [])),
])
def test_oracle_counts_a_call_in_flight_where_old_parts_are_deleted(known, calls, in_flight, missing):
    """A program that was killed in its first call has lost nothing."""
    shown = [(call[0], "?") for call in in_flight]
    assert oracle.compare_thread(1, known, calls, shown, drops_oldest=True) == missing


def test_oracle_detects_a_missing_ring_file(killed, tmp_path):
    folder, pid = killed
    shutil.copy(folder / "run.trace", tmp_path)
    with pytest.raises(oracle.Wrong, match="incomplete"):
        oracle.compare(COMMAND, tmp_path / "run.trace", folder / "driver.log", pid)


def test_page_has_the_stored_results(tmp_path, monkeypatch):
    page = tmp_path / "reliability.md"
    shutil.copy(results.PAGE, page)
    monkeypatch.setattr(results, "PAGE", page)
    results.write_page(checks.CHECKS)
    assert page.read_text() == (REPOSITORY / "docs" / "reliability.md").read_text(), "run scripts/nightly --page"


def test_page_has_a_row_for_each_fuzz_target():
    rows = results.fuzz_table()[2:]
    assert [row.split()[1] for row in rows] == results.fuzz_targets() and len(rows) > 20


def test_host_matrix_is_counted_by_its_own_properties(tmp_path):
    report = tmp_path / "report.xml"
    case = '<testcase><properties><property name="{}" value="{}"/><property name="system" value="here"/>{}</properties>{}</testcase>'
    differs = '<property name="differences" value="2"/>'
    report.write_text("<testsuites>" + case.format("program", "plain", "", "") + case.format("program", "plain", differs, "<failure/>")
                      + case.format("program", "quota", "", "<skipped/>") + case.format("program", "fork", "", "<error/>") + "</testsuites>")
    system = {"system": "here", "programs": 2, "runs": 3, "differences": 3, "not_possible": 1}
    assert host_runs.summarise(report) == {"inputs": 3, "losses": 3, "systems": [system]}


def test_nightly_lists_its_checks():
    listed = subprocess.run([REPOSITORY / "scripts" / "nightly", "--list"], capture_output=True, text=True, check=True, env=os.environ).stdout
    assert re.findall(r"^(\S+) ", listed, re.M) == [check.name for check in checks.CHECKS]
