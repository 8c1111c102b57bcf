"""Words and tables for the results of scripts/checks/whatif."""

import re
from collections import defaultdict
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "commands" / "whatif.md"
#: In the reason of a row whose model reserves other bytes than the recorded run.
MODEL_DIFFERS = "with the recorded settings the model reserves"
BEGIN, END = "<!-- begin: proof -->", "<!-- end: proof -->"


def errors_of(result):
    """Returns rows that are wrong: exact but different, or a recorded run that the model misses."""
    if "error" in result:
        return [result["error"]]
    rows = [result["base"], *result["rows"]]
    # The recorded settings are those of the model, so no doubt excuses a difference there.
    missed = [f"recorded: {result['base']['reason']}"] if MODEL_DIFFERS in (result["base"]["reason"] or "") else []
    return missed + [f"{row['setting'] or 'recorded'}: {row['different']}" for row in rows if row["different"] and row["status"] == "exact"]


def describe(result):
    """Returns lines for the terminal, and the number of errors."""
    name, errors = f"torch {result['version']}, {result['program']}", errors_of(result)
    rows = result.get("rows", [])
    equal, exact = sum(not row["different"] for row in rows), sum(row["status"] == "exact" for row in rows)
    lines = [f"{name}: {equal} of {len(rows)} equal, {exact} exact, {result['seconds']} s"]
    lines += [f"  ERROR {error}" for error in errors]
    for row in rows:
        if row["status"] != "exact":
            lines.append(f"  {row['status']}: {row['setting']}: {row['reason']}" + (f" {row['different']}" if row["different"] else ""))
    return lines, len(errors)


def cell_of(result):
    if result is None:
        return "not run"
    if "error" in result:
        return "failed"
    rows = result["rows"]
    return f"{sum(not row['different'] for row in rows)} of {len(rows)} equal"


def version_key(version):
    return [int(part) for part in version.split(".")]


def proof(results):
    """Returns the lines of the section's table and totals."""
    versions = sorted({result["version"] for result in results}, key=version_key, reverse=True)
    by_program = defaultdict(dict)
    for result in results:
        by_program[result["program"]][result["version"]] = result
    rows = [row for result in results for row in result.get("rows", [])]
    exact = [row for row in rows if row["status"] == "exact"]
    others = [row for row in rows if row["status"] != "exact"]
    lines = [
        f"{len(by_program)} programs, {len(versions)} releases of PyTorch, {len(rows):,} predictions:", "",
        f"- {len(exact):,} were labelled exact. {sum(not row['different'] for row in exact):,} of them equal the real run.",
        f"- {len(others):,} were labelled indicative. {sum(not row['different'] for row in others):,} of them equal it all the same.", "",
        "| program | " + " | ".join(f"torch {version}" for version in versions) + " |",
        "|---|" + "---|" * len(versions),
    ]
    for program, of_version in sorted(by_program.items()):
        lines.append(f"| {program} | " + " | ".join(cell_of(of_version.get(version)) for version in versions) + " |")
    reasons = defaultdict(lambda: [0, 0])
    for row in others:
        for reason in row["reason"].split("; "):
            words = " ".join(word for word in reason.split() if not word.lstrip("(").isdigit())
            words = re.sub(r"\berror$", "errors", words)
            reasons[words][0] += 1
            reasons[words][1] += not row["different"]
    lines += ["", "Why rows were indicative (a row may have several reasons):", "", "| reason | rows | equal |", "|---|---|---|"]
    lines += [f"| {reason} | {count} | {equal} |" for reason, (count, equal) in sorted(reasons.items(), key=lambda item: -item[1][0])]
    return lines


def write_proof(results):
    """Replaces what the page has between the markers."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text("\n".join([before + BEGIN, "", *proof(results), "", END]) + after, encoding="utf-8")
