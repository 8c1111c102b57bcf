"""Checks of the driver: addresses, queries during capture, CUDA graphs, and pools."""

from .registry import SIMULATED_DRIVER, check
from .trace import assert_equals_segments, assert_equals_stats, assert_running_totals
from .verdicts import DIFFERENT, EQUAL, IMPOSSIBLE, MEASURED, Impossible, assert_equal, mib, table


@check("addresses", blind=SIMULATED_DRIVER)
def addresses(harness):
    _, trace = harness.run_traced("one_call")
    names = [name for name in trace.meta.get("apis", "").split() if name != "-"]
    rows, other, missing = [], [], []
    for facts in harness.run_bare("addresses", arguments=names):
        found = [address for _, address in facts["found"]]
        if facts["exported"] is None or None in found:
            missing.append(facts["name"])
        elif any(address != facts["exported"] for address in found):
            other.append(facts["name"])
        addresses = [facts["exported"]] + found
        if len(set(addresses)) > 1:
            rows.append([facts["name"]] + [hex(address) if address else "none" for address in addresses])
    numbers = table(["function", "exported"] + ["cuGetProcAddress, %d" % asked for asked, _ in facts["found"]], rows)
    detail = "of %d functions, cuGetProcAddress_v2 returns the exported address for %d" % (len(names), len(names) - len(other) - len(missing))
    detail += "".join("; %s: %s" % (what, ", ".join(which)) for what, which in (("another address", other), ("missing", missing)) if which)
    # Another address is no error, because functions are then matched by name and version. But it is
    # expected to be rare.
    yield MEASURED if other or missing else EQUAL, detail, numbers


@check("capture", "queries", blind=SIMULATED_DRIVER)
def capture_queries(harness):
    reported = harness.run_bare("capture_queries")
    answers = {}
    for facts in reported:
        valid = facts["status"] == 1 and facts["end"] == 0
        answer = "legal" if valid and facts["result"] == 0 else \
            "%d, %s" % (facts["result"], "capture valid" if valid else "capture invalidated: %d" % facts["end"])
        answers.setdefault(facts["query"], []).append(answer)
    numbers = table(["during a capture", "global", "thread local", "relaxed"], [[query] + codes for query, codes in answers.items()])
    always = [query for query, codes in answers.items() if set(codes) == {"legal"} and query != "nothing"]
    # The recorder itself calls cuCtxGetDevice only.
    if "cuCtxGetDevice" not in always:
        yield DIFFERENT, "cuCtxGetDevice, which the recorder calls, fails: " + ", ".join(answers["cuCtxGetDevice"]), numbers
    else:
        yield MEASURED, "legal in every mode: " + ", ".join(always), numbers


@check("capture", "CUDA graph")
def cuda_graph(harness):
    reported, trace = harness.run_traced("cuda_graph")
    facts = reported[-1]
    assert_running_totals(trace)
    assert_equals_stats(trace, facts["begin"], "before the capture")
    count = assert_equals_stats(trace, facts["stats"], "after three replays")
    alive = assert_equals_segments(trace, facts["segments"], count)
    private = [one for one in facts["segments"] if one["address"] in facts["private"]]
    made = {(event["addr"], event["size"]) for event in trace.events if event["kind"] == "device_alloc" and event["rc"] == 0}
    for one in facts["segments"]:
        assert_equal("segment %#x of %d bytes" % (one["address"], one["size"]), (one["address"], one["size"]) in made, True)
    if not private:
        yield IMPOSSIBLE, "PyTorch's snapshot does not identify private pools", ""
        return
    inside = [event for event in trace.blocks[:count] if event["kind"] == "block_alloc" and
              any(one["address"] <= event["addr"] < one["address"] + one["size"] for one in private)]
    assert_equal("blocks in private pools seen", bool(inside), True)
    yield (EQUAL, "captured and replayed; %d segments, %d of them (%s) in a private pool with %d allocations; %d live blocks" %
           (len(facts["segments"]), len(private), mib(sum(one["size"] for one in private)), len(inside), alive), "")


@check("pools")
def pools(harness):
    reported, trace = harness.run_traced("pools", extra={"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"})
    if any(facts["used"] is None for facts in reported):
        raise Impossible("the driver refuses cuMemPoolGetAttribute")

    def alive(moment, grain):
        live = {}
        for event in trace.events:
            if event["time_ns"] > moment or event["rc"] != 0:
                continue
            if event["kind"] == "async_alloc" and event["aux1"] == 0:
                live[event["addr"]] = -(-event["size"] // grain) * grain
            elif event["kind"] in ("async_free", "device_free"):
                live.pop(event["addr"], None)
        return sum(live.values())

    # The driver may round to undocumented units; find the smallest one that explains all values.
    grains = [1 << shift for shift in range(0, 22)]
    grain = next((grain for grain in grains if all(alive(facts["at"], grain) == facts["used"] for facts in reported)), None)
    rows = [[facts["label"], alive(facts["at"], grain or 1), facts["used"], facts["torch"], mib(facts["reserved"])] for facts in reported]
    numbers = table(["after", "trace: bytes in the pool", "pool: used", "memory_allocated()", "pool: reserved"], rows)
    over = [row[2] - row[1] for row in rows]
    if grain is None and min(over) >= 0 and over[-1] == 0:
        yield MEASURED, "the pool rounds by no single unit: up to %s above the trace, and both end equal" % mib(max(over)), numbers
    elif grain is None:
        first = next(row for row in rows if row[1] != row[2])
        yield DIFFERENT, "after %s the trace has %d live bytes, the pool %d" % tuple(first[:3]), numbers
    else:
        units = "to the byte" if grain == 1 else "in units of %d bytes" % grain
        yield EQUAL, "live bytes equal the pool's used, %s, at %d points" % (units, len(reported)), numbers
