"""Compares a report with the truth.

Results of a leaking program, best first:

line first     the first finding names a marked line
line later     another finding names it
other line     there are findings, and none names it
growth         no finding, but the line is listed as growth, with its class
growth, line   the same, with another line
missed         nothing

Results of all other programs: `alarm` (a finding), `growth` (with its class), `clean`.
"""

from pathlib import Path

LEAK_RESULTS = ["line first", "line later", "other line", "growth", "growth, line", "missed"]
OTHER_RESULTS = ["clean", "growth", "alarm"]
# Classes and rules that describe a program of each kind; `alarm` is right for none of them.
RIGHT_CLASSES = {"growing": {"growing_sizes", "ratchet"}, "filling": {"filling", "saturating", "possible_leak"}}


def judge(program, truth, report):
    """Returns what the report says of the run, as a row of results."""
    leaks = report["leaks"]
    growth = growth_of(report)
    row = {
        "result": result_of(program, leaks, growth),
        "leaks": [describe_leak(leak) for leak in leaks],
        "growth": [{"line": line_text(one["site"]), "class": one["class"], "bytes": one["bytes"]} for one in growth],
        "assessment": [{key: one.get(key) for key in ("status", "reason", "remedy")} for one in report.get("leak_assessment") or []],
        "steps": steps_of(report),
    }
    row["class"] = class_of(program, row["result"], growth)
    if program.kind == "leak":
        row["rate"] = compare_rates(program, truth, leaks, row["steps"]["count"])
    return row


def growth_of(report):
    """Growth that the report does not call a leak; in reports without an assessment, by rule."""
    found = [one for part in report.get("leak_assessment") or [] for one in part.get("growth") or []]
    if "leak_assessment" in report:
        return found
    quiet = {"warm_up", "optimizer_state", "library_workspace", "one_off"}
    return [dict(one, **{"class": one["rule"]}) for one in report.get("benign_growth") or [] if one["rule"] not in quiet]


def result_of(program, leaks, growth):
    if program.kind != "leak":
        return "alarm" if leaks else "growth" if growth else "clean"
    named = [is_marked(program, one["site"]) for one in leaks]
    if any(named):
        return "line first" if named[0] else "line later"
    if leaks:
        return "other line"
    if any(is_marked(program, one["site"]) for one in growth):
        return "growth"
    return "growth, line" if growth else "missed"


def class_of(program, result, growth):
    """The class that the report gives to growth: at the marked line, else the largest."""
    if not result.startswith("growth"):
        return None
    marked = [one for one in growth if is_marked(program, one["site"])]
    return max(marked or growth, key=lambda one: one["bytes"] or 0)["class"]


def is_marked(program, site):
    return bool(site["file"]) and program.allows(site["file"], site["line"])


def line_text(site):
    return f"{Path(site['file']).name}:{site['line']}" if site["file"] else site.get("function") or "unknown"


def describe_leak(leak):
    kept = {key: leak.get(key) for key in ("kind", "shape", "class", "confidence", "bytes", "bytes_per_step", "period_steps", "first_step")}
    return {"line": line_text(leak["site"]), **kept}


def steps_of(report):
    steps = report["steps"]
    return {"source": steps["source"], "count": steps["count"]}


def compare_rates(program, truth, leaks, counted):
    """Compares bytes per step of all findings with the measured rate.

    `error` compares the growth over the run, so it does not depend on what a step is. `step_error`
    compares the printed rate itself, for programs whose steps are visible.
    """
    reported = sum(leak["bytes_per_step"] or 0 for leak in leaks)
    done = len(truth.values)
    rate = {"measured": truth.rate, "reported": reported, "error": None, "step_error": None}
    if leaks and truth.rate and counted and not program.rate_varies:
        rate["error"] = reported * counted / done / truth.rate - 1
        if program.unit == "optimizer":
            rate["step_error"] = reported / truth.rate - 1
    return rate
