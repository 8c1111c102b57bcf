"""Compares a trace with PyTorch's statistics and with the simulated driver's log."""

from conftest import driver_calls, held_after_each_call

#: Logged calls that the trace does not record, with the reason.
NOT_EVENTS = {
    "cuMemGetAllocationGranularity": "a question",
    "cuMemGetInfo_v2": "a question",
}


def block_events(events):
    return [event for event in events if event["kind"] in ("block_alloc", "block_free")]


def assert_blocks_equal_torch(events, stats):
    """Compares counts, bytes and running totals with PyTorch's statistics, up to their snapshot."""
    blocks = block_events(events)
    allocations = [event for event in blocks if event["kind"] == "block_alloc"]
    frees = [event for event in blocks if event["kind"] == "block_free"]
    freed = stats["allocation.all.freed"]
    assert len(allocations) == stats["allocation.all.allocated"]
    assert sum(event["size"] for event in allocations) == stats["allocated_bytes.all.allocated"]
    assert len(frees) >= freed, "the interpreter frees more at exit"
    assert sum(event["size"] for event in frees[:freed]) == stats["allocated_bytes.all.freed"]
    total = 0
    for event in blocks:
        total += event["size"] if event["kind"] == "block_alloc" else -event["size"]
        assert event["aux0"] == total, f"running total differs at {event}"
    peak = max(event["aux0"] for event in blocks)
    assert peak == stats["allocated_bytes.all.peak"]


def assert_calls_equal_driver(events, calls):
    """Checks that the trace has exactly the log's memory calls: order, address, size and result."""
    logged = [call for call in calls if call["api"] not in NOT_EVENTS]
    traced = driver_calls(events)
    assert [event["api"] for event in traced] == [call["api"] for call in logged]
    for event, call in zip(traced, logged):
        assert (event["rc"], event["tid"]) == (call["rc"], call["tid"]), f"{event} {call}"
        if call["rc"] == 0:
            assert event["addr"] == call["addr"], f"{event} {call}"
        # A failed call returns no pitch.
        pitch_unknown = call["rc"] != 0 and call["api"] == "cuMemAllocPitch_v2"
        if event["size"] and not pitch_unknown:
            assert event["size"] == call["size"], f"{event} {call}"


def assert_held_equals_driver(trace, calls):
    """After each call, replay's bytes on its device equal the driver's, minus page rounding. Host
    and managed memory equal the driver's count of all its live blocks."""
    logged = [call for call in calls if call["api"] not in NOT_EVENTS]
    held = held_after_each_call(trace)
    for call, places in zip(logged, held, strict=True):
        if call["dev"] != "-1":
            assert int(places.get(call["dev"], 0)) == int(call["used"]) - int(call["slack"]), f"{call} {places}"
        for kind in ("host", "managed"):
            assert int(places.get(kind, 0)) == int(call.get(kind, 0)), f"{call} {places}"
    return held
