"""Compares recorded Python call sites with the stacks that CPython reports for the same calls."""

import json
import subprocess
from pathlib import Path

import pytest

from conftest import DRIVER, PYTHONS, WORKLOADS, dump, environment
from stack_dump import stacks


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: Path(path).name)
def test_call_sites_match_cpython_for_every_kind_of_code(tmp_path, python):
    assert PYTHONS, "GPUMEMTRACE_PYTHONS is not set: run scripts/test"
    driver = tmp_path / "libcuda.so.1"
    driver.symlink_to(DRIVER)
    process = subprocess.run(
        [python, WORKLOADS / "stacks/call_sites.py", driver, tmp_path / "expected.json"],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True,
    )
    assert process.returncode == 0, process.stderr
    assert "gpumemtrace" not in process.stderr
    expected = json.loads((tmp_path / "expected.json").read_text())
    stack = stacks(tmp_path / "run.trace")
    allocations = {event["size"]: event for event in dump(tmp_path / "run.trace") if event["kind"] == "device_alloc"}
    assert len(allocations) == len(expected) > 300
    for size, frames in expected.items():
        seen = [list(frame) for frame in stack(allocations[int(size)]["python"])]
        # Since 3.11 CPython reports qualified names; nothing else differs between versions.
        assert seen == frames, f"size {size}"
