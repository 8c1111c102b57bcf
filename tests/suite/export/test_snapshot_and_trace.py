"""Runs that PyTorch and the preloaded library both record: the two reports have equal numbers.

The runs are rows of tests/workloads/snapshots/make_corpus.py, in each PyTorch environment.
"""

import importlib.util

import pytest
from conftest import LIBRARY, VENVS, WORKLOADS
from snapshot_reports import gap_at_end, oracle, report_of, rows_by_device


def load_make_corpus():
    spec = importlib.util.spec_from_file_location("make_corpus", WORKLOADS / "snapshots" / "make_corpus.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MAKE_CORPUS = load_make_corpus()
ROWS = {name: (arguments, variables) for name, arguments, variables in MAKE_CORPUS.ROWS}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("row", ["training-late", "fragments-expandable", "pools", "pending", "oom", "devices-ring"])
def test_report_equals_that_of_our_trace(row, torch_version, tmp_path):
    folder = tmp_path / row
    done = MAKE_CORPUS.run(folder, LIBRARY, VENVS[torch_version], *ROWS[row])
    assert done.returncode == 0, done.stderr
    path = folder / "snapshot.pickle"
    code, report = report_of(path)
    _, ours = report_of(folder / "run.trace")
    assert len(ours["devices"]) == (2 if row == "devices-ring" else 1)
    for row in ours["devices"]:
        device, mine = row["device"], rows_by_device(report["devices"]).get(row["device"])
        if not row["end"]["reserved_bytes"] and mine is None:
            continue
        for name in ("live_bytes", "reserved_bytes"):
            assert mine["end"][name] == row["end"][name]
        history = oracle(path)[device]
        if not history.begins_late and history.rounding.is_known:
            assert mine["peak"]["live_bytes"] == row["peak"]["live_bytes"]
        if ours["traces"][0]["torch_tracker"] != "attached":
            # Without the tracker, the trace has no requested sizes and pools.
            continue
        (gap, causes), (wanted, wanted_causes) = gap_at_end(report, device), gap_at_end(ours, device)
        assert gap["requested_bytes"] == wanted["requested_bytes"]
        if history.begins_late or gap["request"] != wanted["request"]:
            # What a free block is stranded from depends on the requests, and on known pools.
            causes, wanted_causes = without_reason(causes), without_reason(wanted_causes)
        assert causes == wanted_causes


def without_reason(causes):
    """The causes, with one for all free memory in segments that blocks keep."""
    kept = ("pinned", "stranded_stream", "stranded_pool")
    return {name: size for name, size in causes.items() if name not in kept} | {"kept": sum(causes.get(name, 0) for name in kept)}
