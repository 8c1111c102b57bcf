"""The host matrix as a long check: how many programs were compared on which systems, and how many
differences there were."""

import shlex
import xml.etree.ElementTree as ElementTree

from .commands import call
from .hosts import REPOSITORY, TARGET


def run(scale, options):
    report = TARGET / "host" / "report.xml"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    code, output = call(REPOSITORY / "scripts" / "test", "--long", "suites", "host", PYTEST_ADDOPTS=shlex.quote(f"--junitxml={report}"))
    if not report.exists():
        raise RuntimeError(f"scripts/test exited with {code} and has no report: {output[-500:]}")
    found = summarise(report)
    return found | {"losses": max(found["losses"], int(code != 0))}


def summarise(report):
    """Returns the result, from the properties that each run of the suite records."""
    systems = {}
    for case in ElementTree.parse(report).iter("testcase"):
        known = {one.get("name"): one.get("value") for one in case.iter("property")}
        if "program" not in known:  # a test of the harness
            continue
        system = systems.setdefault(known.get("system", "?"), {"programs": set(), "runs": 0, "differences": 0, "not_possible": 0})
        if case.find("skipped") is not None:
            system["not_possible"] += 1
            continue
        has_failed = case.find("failure") is not None or case.find("error") is not None
        system["programs"].add(known.get("program"))
        system["runs"] += 1
        system["differences"] += int(known.get("differences", 0)) or int(has_failed)
    rows = [{"system": name, **system, "programs": len(system["programs"])} for name, system in sorted(systems.items())]
    return {"inputs": sum(row["runs"] for row in rows), "losses": sum(row["differences"] for row in rows), "systems": rows}


def table(result):
    """The rows of docs/reliability.md."""
    lines = ["| C library | programs | runs compared | differences | runs not possible there |", "|---|---|---|---|---|"]
    for row in result["systems"]:
        name = "of the machine" if row["system"] == "here" else row["system"].replace("-", " ")
        lines.append(f"| {name} | {row['programs']} | {row['runs']} | {row['differences']} | {row['not_possible']} |")
    return lines
