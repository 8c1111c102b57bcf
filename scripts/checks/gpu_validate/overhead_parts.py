"""Which part of the recorder costs what: an allocation loop with parts of it switched off."""

import re
import statistics
import subprocess

from .registry import check
from .verdicts import MEASURED, Different, Impossible, table

#: Settings of each way; the first one has no library.
WAYS = {
    "bare": {},
    "traced": {},
    "tracker off": {"GPUMEMTRACE_TORCH_DETAILS": "off"},
    "stacks off": {"GPUMEMTRACE_STACKS": "none"},
    "both off": {"GPUMEMTRACE_TORCH_DETAILS": "off", "GPUMEMTRACE_STACKS": "none"},
    "kernel clock": {"GPUMEMTRACE_CLOCK": "kernel"},
}


@check("overhead", variant="its parts", blind="the simulated driver and this processor are not those of a GPU machine")
def parts(harness):
    quick = harness.args.quick
    rounds, pairs = (1, 5_000) if quick and harness.simulated else (3, 50_000) if quick else (7, 100_000)
    runs = {way: [] for way in WAYS}
    for number in range(rounds):
        order = list(WAYS)
        # The first run of a round has colder caches, so the order rotates.
        for way in order[number % len(order):] + order[:number % len(order)]:
            ran = harness.run("overhead", traced=way != "bare", extra=WAYS[way], arguments=["loop", 0, pairs, "small"], patience=300)
            if harness.failure_of(ran):
                raise (Impossible if way == "bare" else Different)("%s: %s" % (way, harness.failure_of(ran)))
            facts = ran.facts[0]
            facts["ring_waits"] = 0 if way == "bare" else ring_waits(harness, ran.folder)
            runs[way].append(facts)
    middle = {way: statistics.median(facts["ns"] for facts in found) for way, found in runs.items()}
    rows = []
    for way, found in runs.items():
        more = [facts["ns"] - bare["ns"] for facts, bare in zip(found, runs["bare"])]
        per_pair = [counted([facts[name] for facts in found], pairs) for name in ("faults", "switches", "migrations")]
        rows.append([way, "%.0f ns" % middle[way], "%+.0f ns" % statistics.median(more), "%+.0f to %+.0f" % (min(more), max(more)),
                     *per_pair, "%d" % sum(facts["ring_waits"] for facts in found)])
    numbers = table(["way", "a pair", "more than bare", "range", "page faults a pair", "switches a pair", "migrations a pair",
                     "waits for ring room"], rows)
    numbers += "\n\n%d interleaved rounds of %d pairs of an allocation and a free, 30 frames deep; wall clock, the best fifth of each." % (rounds, pairs)
    yield MEASURED, ", ".join(f"{way} {middle[way] - middle['bare']:+.0f} ns" for way in WAYS if way != "bare"), numbers


@check("overhead", variant="the processor", blind="this processor is not that of a GPU machine")
def processor(harness):
    facts = harness.run_bare("processor_costs")[0]
    rows = [[name, f"{ns:.1f} ns"] for name, ns in facts.items()]
    numbers = table(["operation", "time"], rows)
    numbers += "\n\nEach event reads the counter once. A virtual machine may intercept that read, which then takes over a microsecond."
    yield MEASURED, ", ".join(f"{name} {ns:.1f} ns" for name, ns in facts.items()), numbers


def counted(values, pairs):
    return "unknown" if None in values else "%.3f" % (statistics.median(values) / pairs)


def ring_waits(harness, folder):
    """Returns how often a thread waited for room in its ring."""
    done = subprocess.run([str(harness.args.command), "info", str(folder / "run.trace")], stdout=subprocess.PIPE, universal_newlines=True)
    found = re.search(r"ring_waits: ([\d,]+)", done.stdout)
    return int(found[1].replace(",", "")) if found else 0
