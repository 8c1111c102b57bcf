"""The host matrix as a long check: how many programs were compared on which systems, and how many
differences there were."""

import os
import xml.etree.ElementTree as ElementTree

from .commands import NotPossible, call
from .hosts import TARGET

SUITE = "tests/suite/host/test_host_matrix.py"


def run(scale, options):
    """Compares the programs; below full scale, every so manieth run."""
    python = TARGET / "venvs" / "tools" / "bin" / "python"
    if not python.exists():
        raise NotPossible("no pytest in target/venvs/tools: run scripts/test --quick")
    code, output = call("cargo", "build", "--release", "--quiet", "-p", "gpumemtrace-interpose", "-p", "gpumemtrace-cli")
    if code:
        raise RuntimeError(f"cargo exited with {code}: {output[-500:]}")
    pytest, variables = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider"], environment()
    _, listed = call(*pytest, "--collect-only", SUITE, shows=False, **variables)
    # Test ids are relative to the folder of pytest.ini.
    ids = [f"tests/suite/{line}" for line in listed.splitlines() if "::" in line]
    chosen = ids[:: max(1, round(1 / scale))]
    if not all(one.startswith(SUITE) for one in chosen) or not chosen:
        raise RuntimeError(f"pytest lists no programs: {listed[-500:]}")
    report = TARGET / "host" / "report.xml"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    code, output = call(*pytest, "-n", "2", "--junitxml", report, *chosen, **variables)
    if not report.exists():
        raise RuntimeError(f"pytest exited with {code} and has no report")
    return summarise(report)


def environment():
    """The other systems and interpreters, if scripts/test has prepared them here."""
    variables = {}
    old, library = TARGET / "glibc-2.17", TARGET / "x86_64-unknown-linux-gnu" / "release" / "libgpumemtrace.so"
    # A wheel's library from before the last change would be another one.
    _, changed = call("git", "log", "-1", "--format=%ct", "--", "recorder", "interpose", "trace-format", shows=False)
    if old.exists() and library.exists() and library.stat().st_mtime >= float(changed):
        variables["GPUMEMTRACE_OLD_LIBC"] = f"{old}={library}"
    if (TARGET / "venvs" / "greenlet" / "gevent").exists():
        variables["GPUMEMTRACE_GREENLETS"] = f"{TARGET / 'venvs' / 'tools' / 'bin' / 'python'}={TARGET / 'venvs' / 'greenlet'}"
    return {name: value for name, value in variables.items() if name not in os.environ}


def summarise(report):
    """Returns the result, from the properties that each run of the suite records."""
    systems = {}
    for case in ElementTree.parse(report).iter("testcase"):
        known = {one.get("name"): one.get("value") for one in case.iter("property")}
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
