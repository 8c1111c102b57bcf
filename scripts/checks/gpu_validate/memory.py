"""Checks of PyTorch's memory: doctor, statistics, snapshot, and the device's used bytes."""

import json
import os
import re
import subprocess
from collections import Counter

from .registry import check
from .trace import assert_equals_segments, assert_equals_stats, assert_running_totals
from .verdicts import DIFFERENT, EQUAL, IMPOSSIBLE, MEASURED, Different, assert_equal, mib, table


@check("doctor")
def doctor(harness):
    env = harness.environment(harness.folder, False, {"GPUMEMTRACE_LIB": harness.args.library})
    # PyTorch may bring its own driver (the simulated GPU does); the doctor must find that one.
    here = os.path.dirname(harness.machine["libcuda"][0])
    env["LD_LIBRARY_PATH"] = ":".join(filter(None, [env.get("LD_LIBRARY_PATH"), here]))
    done = subprocess.run([str(harness.args.command), "doctor", "--json", "--python", str(harness.args.python)], env=env,
                          cwd=harness.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, timeout=300)
    try:
        found = json.loads(done.stdout)["checks"]
    except (ValueError, KeyError):
        raise Different("exit code %d: %s" % (done.returncode, (done.stderr or done.stdout)[-300:]))
    for one in found:
        if one["verdict"] == "bad":
            raise Different("%s: %s" % (one["name"], one["says"]))
    absent = ["%s (%s)" % (one["name"], one["says"]) for one in found if one["verdict"] != "ok"]
    detail = "%d of %d ok" % (len(found) - len(absent), len(found)) + ("; absent: " + "; ".join(absent) if absent else "")
    # The result is published, so it has no paths of this machine.
    def without_folders(text):
        return re.sub(r"/[^\s:,()]*/", "", text)

    yield EQUAL, detail, table(["check", "verdict", "says"], [[one["name"], one["verdict"], without_folders(one["says"])] for one in found])


@check("memory_stats", "expandable segments", conf="expandable_segments:True")
@check("memory_stats", "native segments")
def memory_stats(harness, conf=""):
    reported, trace = harness.run_traced("memory_stats", extra={"PYTORCH_CUDA_ALLOC_CONF": conf} if conf else {})
    assert_running_totals(trace)
    rows = []
    for facts in reported:
        where, before, after = facts["where"], facts["before"], facts["after"]
        begin, end = assert_equals_stats(trace, before, where), assert_equals_stats(trace, after, where)
        part = trace.blocks[begin:end]
        peak = max([before["allocated_bytes.all.current"]] + [event["aux0"] for event in part])
        reserved = max([before["reserved_bytes.all.current"]] + [event["aux1"] for event in part])
        assert_equal(where + ": peak allocated", peak, after["allocated_bytes.all.peak"])
        assert_equal(where + ": peak reserved", reserved, after["reserved_bytes.all.peak"])
        rows.append([where, end - begin, mib(peak), mib(reserved)])
    device = trace.report()["devices"][0]["peak"]
    for key, name in (("live_bytes", "allocated_bytes.all.peak"), ("reserved_bytes", "reserved_bytes.all.peak")):
        assert_equal("replay's peak of " + key, device[key], max(facts["after"][name] for facts in reported))
    yield (EQUAL, "%d block events: counts, bytes, running totals and peaks at %d points; replay's peaks" % (end, 2 * len(reported)),
           table(["trained", "block events", "peak allocated", "peak reserved"], rows))


@check("snapshot", "expandable segments", conf="expandable_segments:True")
@check("snapshot", "native segments")
def snapshot(harness, conf=""):
    reported, trace = harness.run_traced("snapshot", extra={"PYTORCH_CUDA_ALLOC_CONF": conf} if conf else {})
    facts = reported[-1]
    count = assert_equals_stats(trace, facts["stats"], "at the snapshot")
    # PyTorch records both under the allocator's lock, so concurrent threads have one order.
    made = {(addr, size) for action, addr, size, _ in facts["entries"] if action == "segment_alloc"}
    theirs = [entry for entry in facts["entries"] if entry[0] in ("alloc", "free_requested", "segment_alloc")]
    seen = {event["seq"] for event in trace.blocks[:count]}
    ours = [event for event in trace.events if event["seq"] in seen or
            event["kind"] == "device_alloc" and event["rc"] == 0 and (event["addr"], event["size"]) in made]
    names = {"block_alloc": "alloc", "block_free": "free_requested", "device_alloc": "segment_alloc"}
    compared, rounding = Counter(), 0
    for number, (event, (action, addr, size, stream)) in enumerate(zip(ours, theirs)):
        at = "entry %d of the history, seq %s: " % (number, event["seq"])
        assert_equal(at + "event", (names[event["kind"]], hex(event["addr"])), (action, hex(addr)))
        if action == "segment_alloc":
            assert_equal(at + "size", event["size"], size)
            continue
        # The history has the requested size, the trace the block's.
        if event["size"] < size:
            raise Different(at + "a block of %d bytes for a request of %d" % (event["size"], size))
        rounding += event["size"] - size if action == "alloc" else 0
        if "requested" in event and action == "alloc":
            assert_equal(at + "requested", event["requested"], size)
            compared["requested sizes"] += 1
        if event.get("stream", "?") != "?" and stream is not None and action == "alloc":
            assert_equal(at + "stream", int(event["stream"], 0), stream)
            compared["streams"] += 1
    assert_equal("entries", len(ours), len(theirs))
    alive = assert_equals_segments(trace, facts["segments"], count)
    more = "".join("; %d %s" % (number, what) for what, number in sorted(compared.items()))
    yield (EQUAL, "%d entries in the same order (alloc, free_requested, segment_alloc) at the same addresses, of 5 threads; "
           "%d live blocks%s; rounding %s" % (len(theirs), alive, more, mib(rounding)), "")


@check("device_memory")
def device_memory(harness):
    reported, trace = harness.run_traced("device_memory")
    samples = [facts for facts in reported if "label" in facts]
    ours = trace.driver_bytes_at([facts["at"] for facts in samples])
    rows, residuals, of_process, first = [], [], [], samples[0]
    for facts, traced in zip(samples, ours):
        residual = facts["used"] - traced
        process = None if facts["process"] is None else facts["process"] - traced
        rows.append([facts["label"], mib(traced), mib(facts["used"]), mib(residual), mib(facts["process"]), mib(process)])
        if facts["plain"]:
            residuals.append(residual)
            of_process += [process] * (process is not None)
    context = None if first["before"] is None or first["device"] is None else first["device"] - first["before"]
    numbers = table(["after", "trace: driver bytes", "cudaMemGetInfo used", "residual", "NVML, this process", "its residual"], rows)
    detail = "used minus traced bytes over %d allocations and frees" % len(residuals)
    if len(set(residuals)) > 1:
        spread = "from %s to %s" % (mib(min(residuals)), mib(max(residuals)))
        yield DIFFERENT, "%s: %s (does another program use this GPU?)" % (detail, spread), numbers
    else:
        yield EQUAL, detail + ": always %s" % mib(residuals[0]), numbers
    if harness.simulated:
        yield "context", IMPOSSIBLE, "a simulated context uses no memory", ""
    else:
        yield "context", MEASURED, "%s by NVML; residual %s at first, %s at the end" % (mib(context), rows[0][3], rows[-1][3]), ""
    if not of_process:
        why = next((facts["nvml"] for facts in reported if "nvml" in facts), "NVML does not list this process")
        yield "NVML per process", IMPOSSIBLE, why, ""
    elif len(set(of_process)) > 1:
        yield "NVML per process", DIFFERENT, "residual from %s to %s" % (mib(min(of_process)), mib(max(of_process))), ""
    else:
        yield "NVML per process", EQUAL, "this process minus traced: always %s, at %d points" % (mib(of_process[0]), len(of_process)), ""
