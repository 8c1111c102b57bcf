"""Replays snapshots of PyTorch through the model of its allocator; every address must be equal.

The files are those of tests/golden/snapshots/, and those below GPUMEMTRACE_CORPUS if it is set.
`recorded_snapshots.json` lists public snapshots of real GPUs, which are not in this repository:
origin, licence, SHA-256, and the releases that lead to the recorded addresses on all its GPUs.
`scripts/setup/public-snapshots` downloads them. Those that GPUMEMTRACE_CORPUS has are found by
their SHA-256.
"""

import hashlib
import json
import os
from pathlib import Path

import pytest

from conftest import REPOSITORY
from recorded_layouts import VERSIONS, NotComparable, compare, lines_of, settings_of
from snapshot_oracle import devices, load
from snapshot_reports import name_of, snapshot_files

PUBLIC = json.loads((Path(__file__).parent / "recorded_snapshots.json").read_text())
GOLDEN = [path for path in snapshot_files() if path.is_relative_to(REPOSITORY)]


@pytest.mark.parametrize("path", GOLDEN, ids=name_of)
def test_own_snapshots_have_the_modelled_layout(path):
    snapshot, version = load(path), path.name.split("-")[1]
    compared = 0
    for history in devices(snapshot).values():
        if history.begins_late and int(version.split(".")[1]) >= 12:
            # The order in which older segments were made decides, and is unknown.
            continue
        try:
            found = compare(history, settings_of(snapshot), version)
        except NotComparable:
            continue
        assert found.difference is None, found
        compared += 1
    if not compared:
        pytest.skip("no device of this snapshot can be replayed")


def test_another_address_is_found():
    """A check of the check: with one address changed, the replay differs."""
    for path in GOLDEN:
        for history in devices(load(path)).values():
            try:
                lines = lines_of(history)
            except NotComparable:
                continue
            requests = [place for place, line in enumerate(lines) if line.startswith("a ")]
            if len(requests) > 10:
                kind, addr, *rest = lines[requests[7]].split()
                history.events[:] = [event | {"addr": event["addr"] + 512} if event.get("addr") == int(addr) else event for event in history.events]
                assert compare(history, "", "2.9.1").difference
                return
    raise AssertionError("no golden snapshot is comparable")


def files_by_hash():
    folder = os.environ.get("GPUMEMTRACE_CORPUS")
    files = [path for path in Path(folder).rglob("*") if path.is_file()] if folder else []
    wanted = {row["bytes"] for row in PUBLIC}
    return {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in files if path.stat().st_size in wanted}


BY_HASH = files_by_hash()


@pytest.mark.skipif(not BY_HASH, reason="GPUMEMTRACE_CORPUS has no public snapshot")
@pytest.mark.parametrize("row", PUBLIC, ids=lambda row: f"{row['repository']}/{row['path']}")
def test_layouts_of_real_gpus(row):
    path = BY_HASH.get(row["sha256"])
    if path is None:
        pytest.skip("this snapshot is not in GPUMEMTRACE_CORPUS")
    snapshot = load(path)
    histories = [history for history in devices(snapshot).values() if len(history.events) > 1]
    assert sum(len(history.events) for history in histories) == row["events"]
    settings = settings_of(snapshot)
    equal = [version for version in VERSIONS if not any(compare(history, settings, version).difference for history in histories)]
    assert equal == row["equal"]
    assert set(row["torch"]) <= set(equal) or row["why_not"]
