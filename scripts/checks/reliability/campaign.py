"""Runs many rounds of `kills`, writes a line for each, and prints a summary by host and phase."""

import multiprocessing
import os
import shutil
import time
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor

from . import kills, oracle
from .hosts import BY_NAME, ORDER, can_mount

#: Undisturbed runs of each host that give its life; the shortest counts.
MEASURED_RUNS = 2


def measure_life(programs, host, folder):
    """Runs a host to its end; its trace must be complete."""
    lives = []
    for number in range(MEASURED_RUNS):
        place = folder / f"{host.name}-{number}"
        try:
            _, life = kills.run_host(programs, host, place)
        except oracle.Wrong as error:
            raise RuntimeError(f"{host.name}, undisturbed: {error}; see {place}") from error
        shutil.rmtree(place)
        lives.append(life)
    return min(lives, key=lambda life: life.end)


def hosts_here(names):
    """Returns the names of hosts in the order of rounds, and those that cannot run here."""
    order = [name for name in ORDER if not names or name in names]
    fills = {name for name in order if BY_NAME[name].disk_fills}
    if fills and not can_mount():
        return [name for name in order if name not in fills], sorted(fills)
    return order, []


def run(programs, options):
    """Returns the exit code and the result as a dict."""
    hosts, absent = hosts_here(options.host)
    folder = kills.FOLDER / f"rounds-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began = time.monotonic()
    rounds, log = [], open(options.log, "w") if options.log else None
    if log:
        print(f"# scripts/soak --kills {options.kills} --seed {options.seed}\n# {kills.COLUMNS}", file=log, flush=True)
    numbers = range(options.kills) if options.round is None else [options.round]
    used = dict.fromkeys(hosts[number % len(hosts)] for number in numbers)
    # Workers are forked while this process has no thread.
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("fork")) as pool:
        measured = [pool.submit(measure_life, programs, BY_NAME[name], folder) for name in used]
        lives = dict(zip(used, (future.result() for future in measured)))
        for name, life in lives.items():
            print(f"{name:13} begins at {life.begun:.3f} s, leaves at {life.leaving:.3f} s, ends at {life.end:.3f} s", flush=True)
        pending = [pool.submit(kills.run_round, programs, options.seed, number, hosts, lives, folder) for number in numbers]
        for future in pending:
            for result in future.result():
                rounds.append(result)
                line = result.line()
                if log:
                    print(line, file=log, flush=True)
                if result.verdict.startswith("FAILED"):
                    names = "".join(f" --host {name}" for name in options.host or [])
                    print(f"{line}\n   repeat: scripts/soak --round {result.number} --seed {options.seed}{names}", flush=True)
    shutil.rmtree(folder)
    result = summary(rounds, options, absent, time.monotonic() - began)
    lines = table(result["hosts"])
    print("\n".join(lines))
    if log:
        print("\n".join(f"# {line}" for line in lines), file=log)
        log.close()
    return (1 if result["failed"] or result["unreported"] else 0), result


def summary(rounds, options, absent, seconds):
    outcomes = [one.outcome for one in rounds]
    return {
        "seed": options.seed, "seconds": round(seconds), "kills": sum(one.killed for one in rounds),
        "ended_before_kill": sum(one.verdict == "ended" for one in rounds), "calls": sum(one.calls for one in outcomes),
        "events": sum(one.events for one in outcomes), "in_flight": sum(one.in_flight for one in outcomes),
        "missing": sum(one.missing for one in outcomes), "unreported": sum(one.missing - one.reported for one in outcomes),
        "failed": sum(one.verdict.startswith("FAILED") for one in rounds), "not_run": absent, "hosts": by_host(rounds),
    }


def by_host(rounds):
    """Sums the rounds of each host and of all, by the columns of the table."""
    groups = defaultdict(list)
    for one in rounds:
        groups[BY_NAME[one.host].title].append(one)
    rows = []
    for title, group in [*groups.items(), ("all", rounds)]:
        killed = [one for one in group if one.killed]
        phases, moments = (Counter(getattr(one, name) for one in killed) for name in ("phase", "moment"))
        outs = [one.outcome for one in group]
        rows.append({
            "host": title, "kills": len(killed), "at start": phases["start"], "running": phases["run"], "forking": phases["fork"],
            "at exit": phases["exit"], "aimed at rotation": moments["rotation"], "aimed at a file call": moments["file call"],
            "calls logged": sum(out.calls for out in outs), "events read": sum(out.events for out in outs),
            "in flight": sum(out.in_flight for out in outs), "missing, reported": sum(out.reported for out in outs),
            "missing, unreported": sum(out.missing - out.reported for out in outs),
            "failed": sum(one.verdict.startswith("FAILED") for one in group),
        })
    return rows


def table(rows):
    """The rows as Markdown."""
    lines = ["| " + " | ".join(rows[0]) + " |", "|---" * len(rows[0]) + "|"]
    return lines + [f"| {row['host']} | " + " | ".join(f"{row[name]:,}" for name in row if name != "host") + " |" for row in rows]
