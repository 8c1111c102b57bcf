"""The Markdown of a set of results."""

import textwrap
from collections import Counter

from .judge import RIGHT_CLASSES

RATE_TOLERANCE = 0.05
# With fewer events, growth is at most a possible leak.
FEW_EVENTS = 6
# Leak events in a run: upper bound and text.
EVENTS = [(5, "1 to 5"), (19, "6 to 19"), (10**9, "20 and more")]


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def leak_cells(rows):
    """Counts of leaking runs: total, found, line first, growth only, missed, rate within 5%."""
    results = Counter(row["result"] for row in rows)
    found = sum(results[name] for name in ("line first", "line later", "other line"))
    growth = results["growth"] + results["growth, line"]
    rates = [row["rate"]["error"] for row in rows if row["rate"]["error"] is not None]
    near = sum(abs(error) <= RATE_TOLERANCE for error in rates)
    return [len(rows), found, results["line first"], growth, results["missed"], f"{near} of {len(rates)}" if rates else ""]


def other_cells(rows):
    results = Counter(row["result"] for row in rows)
    return [len(rows), results["clean"], results["growth"], results["alarm"]]


def by_family(rows):
    header = ["family", "leaks", "found", "line first", "growth only", "missed", "rate within 5%", "healthy", "clean", "growth", "alarms"]
    cells = []
    for family in [*sorted({row["family"] for row in rows}), "all"]:
        chosen = [row for row in rows if family in (row["family"], "all")]
        leaks = [row for row in chosen if row["kind"] == "leak"]
        healthy = [row for row in chosen if row["kind"] == "healthy"]
        cells.append([family, *leak_cells(leaks), *other_cells(healthy)])
    return table(header, cells)


def by_events(rows):
    cells, lower = [], 0
    for upper, text in EVENTS:
        chosen = [row for row in rows if row["kind"] == "leak" and lower < max(1, row["events"]) <= upper]
        cells.append([text, *leak_cells(chosen)])
        lower = upper
    return table(["leak events", "runs", "found", "line first", "growth only", "missed", "rate within 5%"], cells)


def other_kinds(rows):
    cells = []
    for kind, right in RIGHT_CLASSES.items():
        chosen = [row for row in rows if row["kind"] == kind]
        named = sum(row["class"] in right for row in chosen)
        cells.append([kind, *other_cells(chosen), named])
    return table(["kind", "runs", "clean", "growth", "alarms", "right class"], cells)


def assessments(rows):
    """Runs by the report's own assessment; for each, how many leaks it was silent about."""
    cells = []
    for status in sorted({status_of(row) for row in rows}):
        chosen = [row for row in rows if status_of(row) == status]
        silent = [row for row in chosen if row["kind"] == "leak" and row["result"] == "missed"]
        cells.append([status, len(chosen), sum(row["kind"] == "leak" for row in chosen), len(silent)])
    return table(["assessment", "runs", "of them leaking", "leaks missed"], cells)


def status_of(row):
    return row["assessment"][0]["status"] if row["assessment"] else "none in the report"


def shortfalls(rows):
    """A line for each run that is not as it should be."""
    lines = []
    for row in rows:
        name = f"{row['program']}, {row['length']} steps"
        if row.get("unstable"):
            lines.append(f"- {name}: {row['unstable']}")
        if row["kind"] == "leak":
            if row["result"] != "line first":
                lines.append(f"- {name}: {row['result']}{evidence(row)}{limit(row)}")
            elif row["rate"]["error"] is not None and abs(row["rate"]["error"]) > RATE_TOLERANCE:
                rate = row["rate"]
                lines.append(f"- {name}: rate {rate['reported']:,.0f} B instead of {rate['measured']:,.0f} B{step_note(row)}{limit(row)}")
        elif row["result"] == "alarm":
            lines.append(f"- {name} ({row['kind']}): alarm{evidence(row)}{limit(row)}")
    return "\n".join(map(wrapped, lines))


def wrapped(line):
    return textwrap.fill(line, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def limit(row):
    """Why the report could not be right, if that is known."""
    if row["kind"] == "leak" and row["events"] < FEW_EVENTS:
        return f". {row['events']} leak events are too few to call it a leak"
    return f". {row['limit'][0].upper()}{row['limit'][1:]}" if row.get("limit") else ""


def evidence(row):
    if row["leaks"]:
        return ": " + ", ".join(f"{leak['line']} ({leak['shape']}, {leak['confidence']:.2f})" for leak in row["leaks"][:3]) + step_note(row)
    if row["growth"]:
        return f": {row['class']} at {max(row['growth'], key=lambda one: one['bytes'] or 0)['line']}" + step_note(row)
    return step_note(row)


def step_note(row):
    counted, source = row["steps"]["count"], row["steps"]["source"]
    return f" [steps: {counted} by {source}]" if counted != row["done"] else ""


def forecasts(rows):
    known = [row["forecast"] for row in rows if row.get("forecast")]
    if not known:
        return ""
    covered = sum(one["earliest"] <= one["full_at"] <= one["latest"] for one in known)
    near = sum(abs(one["expected"] - one["full_at"]) <= 0.1 * one["full_at"] for one in known)
    return f"Forecasts: {len(known)} runs; the interval covers the truth in {covered}, within 10% of it in {near}."


def brief(rows, failures, usual):
    """Totals, and the results that are not the best and differ from the `usual` rows."""
    leaks, healthy = ([row for row in rows if row["kind"] == kind] for kind in ("leak", "healthy"))
    total, found, first, growth, missed, rates = leak_cells(leaks)
    runs, clean, growing, alarms = other_cells(healthy)
    text = (f"Of {total} leaks, {found} were found, {first} at the right line first, {growth} were named as growth and {missed} missed; "
            f"rates within 5%: {rates}. Of {runs} healthy runs, {clean} were clean, {growing} had growth and {alarms} an alarm.")
    known = {(row["program"], row["length"], row["result"]) for row in usual}
    others = [row for row in rows if (row["program"], row["length"], row["result"]) not in known]
    failed = [wrapped(f"- {name}: {reason}") for name, reason in sorted(failures.items())]
    differences = "\n".join(filter(None, [shortfalls(others), *failed]))
    if differences:
        text += " Other results than usual:"
    return "\n\n".join(filter(None, [textwrap.fill(text, 100), differences]))


def markdown(rows, failures):
    parts = [by_family(rows), "", by_events(rows), "", other_kinds(rows), "", assessments(rows), "", forecasts(rows), "", shortfalls(rows)]
    if failures:
        parts += ["", "Not measured:", "", *[wrapped(f"- {name}: {text}") for name, text in sorted(failures.items())]]
    return "\n".join(parts)
