"""gpumemtrace as PyTorch's pluggable allocator: one driver call per tensor, with its line."""

import pytest

from conftest import LIBRARY, WORKLOADS
from ground_truth import assert_calls_equal_driver

pytestmark = pytest.mark.every_torch

LINE = next(
    number for number, line in enumerate((WORKLOADS / "memory/pluggable.py").read_text().splitlines(), 1) if "planted leak" in line
)


@pytest.mark.parametrize("preloaded", [False, True], ids=["alone", "preloaded"])
def test_pluggable_allocator_records_every_tensor(run_python, torch_version, preloaded):
    run = run_python(torch_version, "memory/pluggable.py", LIBRARY, traced=preloaded)
    assert run.process.stdout == "refused\nwent on\n"
    report = run.report()
    assert report["traces"][0]["mode"] == (["preload"] if preloaded else []) + ["pluggable"]
    # Each tensor is a driver allocation too, which must not be a second finding.
    assert [leak["kind"] for leak in report["leaks"]] == ["tensors"]
    leak = report["leaks"][0]
    assert (leak["site"]["line"], leak["blocks_per_step"], leak["bytes_per_step"]) == (LINE, 1, 32 * 256 * 4)
    assert [oom["requested_bytes"] for oom in report["oom"]] == [1 << 50]
    events = run.events()
    blocks = [event for event in events if event["kind"] == "block_alloc"]
    given = [event for event in events if event["kind"] == "device_alloc" and event["rc"] == 0]
    assert {(event["addr"], event["size"]) for event in blocks} <= {(event["addr"], event["size"]) for event in given}
    sizes = {}
    for event in events:
        if event["kind"] == "block_alloc":
            sizes[event["addr"]] = event["size"]
        elif event["kind"] == "block_free":
            assert event["size"] == sizes.pop(event["addr"])
    assert not [verdict for verdict in report["verdicts"] if verdict["kind"] == "total_mismatch"]
    if preloaded:
        assert_calls_equal_driver(events, run.calls())
