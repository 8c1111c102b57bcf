"""The host matrix notices what a bad neighbour does, and its checks of traces notice losses."""

import copy
import dataclasses

import pytest

from host_matrix.compare import check_trace, differences
from host_matrix.programs import HOST, Program
from test_host_matrix import SYSTEMS, builds, folder, observe_pair  # noqa: F401

PLAIN = Program(HOST / "programs" / "ends" / "plain.c", {})
#: What tests/host/meddler.c does, and what the harness must say of it.
MEDDLING = {
    "handler": "signal 10 meddler.so", "ignored signal": "signal 13 ignored", "mask": "blocked 0x800", "pending signal": "pending 0x800",
    "descriptor": "descriptor 3 cloexec=0", "inheritable descriptor": "descriptor 700 cloexec=0", "thread": "thread plain",
    "mapping": "mapping rwxp anonymous", "limit": "limit 7 100 100", "umask": "Umask: 0000", "working folder": "folder /",
    "environment": "variable MEDDLED=yes", "child": "children one has ended", "daemon": "processes left behind: ['plain']",
    "timer": "interval timer 0 armed 1", "rounding": "MXCSR 0x3f80", "dumpable": "dumpable 0", "name": "Name: meddled",
    "priority": "nice 3", "death signal": "death signal 15", "subreaper": "subreaper 1", "alternate stack": "alternate stack flags=0 size=65536",
    "locale": "locale C.UTF-8", "output": "stdout differs from line 1", "message": "stderr differs from line 1",
    "file": "file meddled: mode=100600", "exit code": "exit code 0, untraced with exit code 3",
    "signal": "the program ends with signal 9",
}


@pytest.fixture(scope="module")
def meddler(builds):  # noqa: F811
    return builds("here").module("meddler.c")


@pytest.mark.parametrize("change", MEDDLING)
def test_harness_notices_neighbour(change, builds, folder, meddler, monkeypatch):  # noqa: F811
    monkeypatch.setenv("MEDDLE", change)
    runs, folders = observe_pair(PLAIN, "plain", builds("here"), "", folder, meddler)
    found = differences(*runs, folders, PLAIN)
    assert any(MEDDLING[change] in line for line in found), found


def test_harness_notices_lost_calls(builds, folder):  # noqa: F811
    (alone, traced), _ = observe_pair(PLAIN, "plain", builds("here"), "", folder, SYSTEMS["here"].library)
    assert not traced.findings
    (pid, counts), = traced.counts.items()
    for changed in ((counts[0] + 1, counts[1] + 1, *counts[2:]), (counts[0] - 1, counts[1] - 1, *counts[2:])):
        other = dataclasses.replace(copy.copy(traced), counts={pid: changed})
        assert "the trace is called complete" in check_trace(alone, other, PLAIN)[0]
    without_trace = dataclasses.replace(traced, files={})
    assert "has no trace" in check_trace(alone, without_trace, PLAIN)[0]
