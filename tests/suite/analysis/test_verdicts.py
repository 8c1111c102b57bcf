"""Verdicts on real PyTorch runs: each appears only where it applies, with PyTorch's numbers."""

import json

import pytest

from conftest import WORKLOADS

MIB = 1 << 20
DEVICE = 4096 * MIB
# Allowed verdicts per workload.
WAYS = {
    "healthy": {},
    "pressure": {"high_pressure": "warning"},
    # Each fragment exists only briefly.
    "cache": {"cache_pressure": "info", "reserved_overhang": "info", "transient_spike": "info"},
    "spike": {"transient_spike": "warning"},
    "hidden": {"hidden_memory": "info"},
}


@pytest.fixture
def verdicts_on(run_python, torch_version, tmp_path):
    def run(way, script="training/verdicts.py", memory="4G"):
        witness = tmp_path / "witness.json"
        traced = run_python(torch_version, script, way, witness, SIMGPU_MEM=memory, own_libraries=True)
        verdicts = traced.report()["verdicts"]
        return {verdict["kind"]: verdict for verdict in verdicts}, json.loads(witness.read_text())

    return run


@pytest.mark.parametrize("way", WAYS)
def test_run_gets_exactly_its_verdicts(verdicts_on, way):
    verdicts, printed = verdicts_on(way)
    assert {kind: verdict["severity"] for kind, verdict in verdicts.items()} == WAYS[way]
    evidence = {kind: verdict["evidence"] for kind, verdict in verdicts.items()}
    if way == "pressure":
        assert evidence["high_pressure"]["live_bytes"] == printed["peak_live"]
        assert evidence["high_pressure"]["share"] >= printed["peak_live"] / DEVICE
    if way == "cache":
        assert evidence["reserved_overhang"]["reserved_bytes"] == printed["peak_reserved"]
        assert evidence["reserved_overhang"]["live_bytes"] == printed["peak_live"]
    if way == "spike":
        spike = evidence["transient_spike"]
        lines = (WORKLOADS / "training/verdicts.py").read_text().splitlines()
        line = next(number for number, line in enumerate(lines, 1) if line.endswith("# line: spike"))
        assert spike["more_by_site"][0]["site"]["line"] == line
        assert spike["peak_bytes"] == printed["peak_live"] and spike["usual_bytes"] < printed["peak_live"] - 3300 * MIB
        # Steps count from 0; the first mark begins step 1.
        assert spike["step"] == 121
    if way == "hidden":
        assert 1400 * MIB <= evidence["hidden_memory"]["bytes"] < 1450 * MIB


def test_fragmentation_that_fails_an_allocation_is_critical(verdicts_on):
    verdicts, printed = verdicts_on("pieces", "memory/oom.py", "512M")
    pieces = verdicts["fragmentation_like"]
    assert pieces["severity"] == "critical"
    # When the request fails there are eleven segments, with 15 MiB free in each.
    assert pieces["evidence"]["unusable_bytes"] == 165 * MIB == printed["reserved"] - printed["allocated"]
    assert pieces["evidence"]["reserved_bytes"] == printed["reserved"]
    assert verdicts["oom"]["severity"] == "critical"


def test_leak_is_creep_with_rate(verdicts_on):
    verdicts, printed = verdicts_on("leak", "memory/oom.py", "512M")
    creep = verdicts["creep_confirmed"]["evidence"]
    assert creep["bytes_per_step"] == 12 * MIB
