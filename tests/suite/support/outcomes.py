"""Writes the outcome of each test as a line of JSON to the file GPUMEMTRACE_OUTCOMES.

`scripts/checks/suites` reads it: it runs failed tests once more, and lists slow ones.
"""

import json
import os

__all__ = ["pytest_configure", "pytest_runtest_logreport", "pytest_runtest_makereport"]

_file = None


def pytest_configure(config):
    global _file
    path = os.environ.get("GPUMEMTRACE_OUTCOMES")
    # Workers of pytest-xdist report to the main process, which writes.
    if path and not hasattr(config, "workerinput"):
        _file = open(path, "w")


def pytest_runtest_makereport(item, call):
    marker = item.get_closest_marker("slow")
    if marker and call.when == "call":
        item.user_properties.append(("slow", marker.args[0]))


def pytest_runtest_logreport(report):
    if _file is None or (report.when != "call" and report.passed):
        return
    outcome = {"name": report.nodeid, "when": report.when, "outcome": report.outcome, "seconds": round(report.duration, 2),
               "slow": dict(report.user_properties).get("slow"), "text": report.longreprtext if report.failed else ""}
    print(json.dumps(outcome), file=_file, flush=True)
