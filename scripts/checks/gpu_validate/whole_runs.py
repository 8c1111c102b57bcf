"""Checks of whole runs: expandable segments, SIGKILL, and overhead."""

import json
import signal
import statistics
import time

from .harness import failure
from .registry import check
from .trace import assert_equals_stats, assert_running_totals
from .verdicts import EQUAL, MEASURED, Different, Impossible, assert_equal, mib, table


@check("expandable")
def expandable(harness):
    reported, trace = harness.run_traced("expandable", extra={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
    if not any(event["kind"] == "map" for event in trace.events):
        raise Impossible("PyTorch maps nothing: expandable segments are not used")
    rows = []
    for facts, device in zip(reported, trace.driver_bytes_at([facts["at"] for facts in reported])):
        # Mappings of other libraries would make this differ; addresses do not show their owner.
        mapped = sum((1 if event["kind"] == "map" else -1) * event["size"] for event in trace.events
                     if event["kind"] in ("map", "unmap") and event["rc"] == 0 and event["time_ns"] <= facts["at"])
        assert_equal("mapped bytes after " + facts["label"], mapped, facts["reserved"])
        rows.append([facts["label"], mib(mapped), mib(facts["reserved"]), mib(device), mib(facts["used"])])
    yield (EQUAL, "mapped minus unmapped bytes equal memory_reserved() at %d points" % len(reported),
           table(["after", "trace: mapped", "memory_reserved()", "trace: driver bytes", "cudaMemGetInfo used"], rows))


@check("kill")
def kill(harness):
    moments = [0.0, 0.013] if harness.args.quick else [0.0, 0.005, 0.013, 0.11, 0.37]
    moments = moments[harness.args.quick and harness.simulated:]
    endings, blocks = [], 0
    for number, moment in enumerate(moments):
        process, folder = harness.start("kill", True, arguments=[("resnet18", "transformer")[number % 2]])
        patience = time.monotonic() + 120
        while (folder / "facts").read_text().count("\n") < 3 + number and time.monotonic() < patience and process.poll() is None:
            time.sleep(0.002)
        time.sleep(moment)
        if process.poll() is not None or time.monotonic() > patience:
            ran = harness.finish(process, folder, 0)
            raise Different("the training ended before the kill: " + failure(ran))
        process.send_signal(signal.SIGKILL)
        process.wait()
        trace = harness.trace(folder)
        assert_equal("the end of the recording", trace.end, "killed")
        assert_running_totals(trace)
        # The last line may be truncated by the kill.
        for line in (folder / "facts").read_text().split("\n")[:-1]:
            assert_equals_stats(trace, json.loads(line)["stats"], "before the kill")
        endings.append(trace.code)
        blocks += len(trace.blocks)
    yield (EQUAL, "%d trainings killed; each trace opens, reports the kill and has every block of memory_stats (%d); exit codes %s" %
           (len(moments), blocks, ", ".join(map(str, endings))), "")


@check("overhead", blind="simulated kernels take no time, so only host time is measured")
def overhead(harness):
    rounds, count, pairs = (3, 10, 50_000) if harness.args.quick else (5, 20, 100_000)
    size = "large"
    if harness.args.quick and harness.simulated:
        rounds, count, pairs, size = 1, 3, 5_000, "small"
    times, per_event = {}, None
    for number in range(rounds):
        ways = ["bare", "traced", "history"]
        # The first run of a round has colder caches, so the order rotates.
        for way in ways[number % 3:] + ways[:number % 3]:
            ran = harness.run("overhead", traced=way == "traced", arguments=[way, count, pairs, size], patience=300)
            if harness.failure_of(ran):
                raise (Different if way == "traced" else Impossible)("%s: %s" % (way, harness.failure_of(ran)))
            if way == "traced":
                trace = harness.trace(ran.folder)
                per_event = trace.size / len(trace.events)
            for facts in ran.facts:
                times.setdefault(facts["what"], {}).setdefault(way, []).append(facts["ns"])
    rows, detail = [], []
    for what, by_way in times.items():
        for way in ("bare", "traced", "history"):
            values = by_way[way]
            ratios = [value / bare for value, bare in zip(values, by_way["bare"])]
            middle = statistics.median(ratios)
            median, spread = statistics.median(values) / 1000, "%.3f to %.3f" % (min(ratios), max(ratios))
            rows.append([what, way, "%.1f µs" % median, "%.3f" % middle, spread])
            if way != "bare":
                detail.append(" ".join([what, way, "%.3f" % middle]))
    numbers = table(["what", "way", "median", "ratio to bare", "range"], rows)
    numbers += "\n\n%d interleaved rounds, one process each; wall clock, synchronised; " % rounds
    numbers += "a step is the median of %d, the loop the best of 5.\nThe trace has %.1f bytes per event." % (count, per_event)
    yield MEASURED, "ratio to bare: " + ", ".join(detail), numbers
