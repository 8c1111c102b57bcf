"""Which long checks run in a number of minutes, in which order, and at which share of their length."""

import time


def age(result):
    """Sorts by the date of the last run. A check that never passed, or failed last, is oldest."""
    return result["date"] if result and result["status"] == "passed" else ""


def full_minutes(check, result, machine):
    """Minutes at full length, by the last run on such a machine; else by the table of checks.

    Most of a short run is building, which would make the full length look many times longer.
    """
    if result and result["status"] == "passed" and result["machine"] == machine and result["scale"] >= 0.2:
        return max(result["seconds"], 1) / 60 / result["scale"]
    return check.minutes


def run_oldest(wanted, minutes, stored, machine, run, clock=time.monotonic):
    """Calls `run(check, share)` for the oldest check, then for the next, for `minutes`.

    `wanted` has the largest share of each check, and `stored(name)` its last result or None. Each
    share is cut to what fits. Returns (check, minutes of its least share) of those not started.
    """
    end = clock() + 60 * minutes
    results = {check: stored(check.name) for check in wanted}
    not_started = []
    # Python's sort is stable, so the table's order decides between equal dates.
    for check in sorted(wanted, key=lambda check: age(results[check])):
        full = full_minutes(check, results[check], machine)
        share = min(max(wanted[check], check.least), (end - clock()) / 60 / full)
        if share < check.least:
            not_started.append((check, check.least * full))
        else:
            run(check, share)
    return not_started
