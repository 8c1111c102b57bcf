"""Compares the two runs of a program. A difference is allowed only if a row of ALLOWED names it."""

import json
import re
from collections import Counter

from conftest import gpumemtrace

#: Lines that only the traced run may have: (pattern, what it is).
ALLOWED = (
    (r"mapping [r-][w-][x-]p libgpumemtrace\.so", "the library"),
    (r"mapping rw-s run[^ /]*\.trace\.ring( \(deleted\))?", "the rings"),
    (r"mapping ---p anonymous|mapping rw-p anonymous", "the writer thread's stack and its guard page; stacks of the recorder"),
    (r"mapping [r-][w-][x-]p lib(gcc_s|m|dl|pthread|rt)[-.][^ /]*", "libraries that ours needs"),
    (r"descriptor (51[2-9]|5[2-9]\d|[6-9]\d\d|\d{4,}) cloexec=1 \S+ type=0100000 at=\d+ (\?|\S*run[^ /]*\.trace(\.ring)?( \(deleted\))?)",
     "the two files; without /proc they have no name"),
    (r"thread gpumemtrace blocked=fffffffe7ffbfeff pending=0{9}0[04]0{5}( .*)", "the writer thread, and the signal of a lease that ended"),
    (r"thread gpumemtrace-lib blocked=fffffffe7ffbfeff pending=0{16} .*", "the thread that asks the driver and NVML"),
    (r"thread \S+ blocked=(fffffffffffbfeff|fffffffe7ffbfeff) pending=0{16} .*", "the writer thread before it has its name"),
    (r"descriptor \d+ cloexec=1 status=0x8000 type=0100000 at=\d+ (/proc/\S+|/sys/\S+)", "what the writer thread reads for a moment"),
    (r"variable LD_PRELOAD=.*", "how the library is loaded"),
    (r"signal 3[23] lib(c|pthread)\S+ .*", "libc's own handlers, installed with the first thread"),
)
#: Lines that the traced run may have while the writer thread is inside the loader. A child is never
#: forked then, so it has none of them; its points begin with "forked".
IN_LOADER = (
    r"descriptor \d+ cloexec=1 status=0x8000 type=0100000 at=\d+ (/etc/ld\.so\.cache|/\S+\.so[.0-9]*)",
    r"mapping r--p ld\.so\.cache",
)
#: Facts of which the untraced run has another value; the traced value must match ALLOWED.
REPLACED = (r"signal 3[23] (default|ignored) .*", r"mapping rw-p anonymous")
POINT = re.compile(r"@(\S+) (.*)")
OURS = re.compile(r"run[^/]*\.trace(\.ring)?$")


def normalise(line, observation, folder):
    """Removes what is new in each run: folders and process ids."""
    for path, name in ((observation.place, "$PLACE"), (folder, "$RUN")):
        line = line.replace(str(path), name)
    return re.sub(r"\b\d+\.counts\b", "PID.counts", re.sub(r"HOST_RUN=\S+", "HOST_RUN=", line))


def split_output(lines):
    """Returns the observed facts, counted, and the program's own lines."""
    facts, own = Counter(), []
    for line in lines:
        match = POINT.fullmatch(line)
        if match:
            facts[match[1], match[2]] += 1
        else:
            own.append(line)
    return facts, own


def differences(alone, traced, folders, program):
    """Returns a line for each difference that is not allowed."""
    found = []
    if not alone.counts:
        found.append("the program makes no GPU call that the driver counts")
    if alone.ending.startswith("did not end"):
        found.append(f"the program {alone.ending}, untraced")
    if alone.ending != traced.ending:
        found.append(f"the program ends with {traced.ending}, untraced with {alone.ending}")
    normal = [[normalise(line, run, folder) for line in run.output] for run, folder in zip((alone, traced), folders)]
    (facts_alone, own_alone), (facts_traced, own_traced) = map(split_output, normal)
    found += different_facts(facts_alone, facts_traced, program.value("differs"))
    found += different_lines("stdout", own_alone, own_traced, program.value("output") == "unordered", program.value("differs"))
    errors = [[normalise(line, run, folder) for line in run.errors] for run, folder in zip((alone, traced), folders)]
    ours = [line for line in errors[1] if line.startswith("gpumemtrace: ")]
    errors[1] = [line for line in errors[1] if line not in ours]
    found += different_lines("stderr", *errors, program.value("output") == "unordered", program.value("differs"))
    says = program.value("says")
    if not says:
        found += [f"the recorder prints: {line}" for line in ours]
    elif not ours or not all(re.search(says, line) for line in ours):
        found.append(f"the recorder prints {ours}, not lines that match {says!r}")
    files = {name: text for name, text in traced.files.items() if name in alone.files or not OURS.search(name)}
    for name in sorted(alone.files.keys() | files.keys()):
        before, after = alone.files.get(name, "no file"), files.get(name, "no file")
        differs = program.value("differs")
        if before != after and not (differs and re.search(differs, f"file {name}")):
            found.append(f"file {name}: {after}, untraced {before}")
    if alone.processes != traced.processes:
        found.append(f"processes left behind: {traced.processes}, untraced {alone.processes}")
    return found


def different_facts(alone, traced, differs):
    def is_free(text, patterns):
        return any(re.fullmatch(pattern, text) for pattern in patterns) or bool(differs and re.search(differs, text))

    allowed = [pattern for pattern, _ in ALLOWED]
    more = [fact for fact in (traced - alone).elements()
            if not is_free(fact[1], allowed if fact[0].startswith("forked") else [*allowed, *IN_LOADER])]
    less = [fact for fact in (alone - traced).elements() if not is_free(fact[1], REPLACED)]
    missing = {point for point, _ in alone} - {point for point, _ in traced}
    less = [fact for fact in less if fact[0] not in missing] + [(point, "the whole point") for point in sorted(missing)]
    return [f"at {point}: only traced: {text}" for point, text in more] + [f"at {point}: only untraced: {text}" for point, text in less]


def different_lines(name, alone, traced, unordered, differs):
    alone, traced = ([line for line in lines if not (differs and re.search(differs, line))] for lines in (alone, traced))
    if unordered:
        alone, traced = sorted(alone), sorted(traced)
    if alone == traced:
        return []
    at = next((at for at, (one, other) in enumerate(zip(alone, traced)) if one != other), min(len(alone), len(traced)))
    return [f"{name} differs from line {at + 1} on: {traced[at:at + 5]}, untraced {alone[at:at + 5]}"]


def check_trace(alone, traced, program):
    """Returns what is wrong with the traces, held against the driver's counts per process. Files
    that exist in the untraced run, too, are the program's."""
    kind, found, recorded = program.value("trace", "exact"), [], {}
    traces = [traced.place / name for name in traced.files
              if re.search(r"run[^/]*\.trace$", name) and name not in alone.files]
    if kind == "none":
        return [f"there is a trace: {path.name}" for path in traces]
    for path in traces:
        facts = read_facts(path)
        if facts is None:
            if kind != "partial":
                found.append(f"{path.name} cannot be read")
            continue
        recorded.setdefault(facts["pid"], []).append(facts)
    for pid, counts in traced.counts.items():
        if counts[0] and pid not in recorded and kind != "partial":
            found.append(f"a process made {counts[0]} allocations and has no trace")
    for pid, parts in recorded.items():
        found += check_counts(parts, traced.counts.get(pid, (0, 0, 0, 0)), kind)
    why = program.value("stopped")
    losses = [loss for parts in recorded.values() for facts in parts for loss in facts["incomplete"]]
    if why and not any(loss["kind"] == "stopped_early" and re.search(why, loss["reason"] or "") for loss in losses):
        found.append(f"the report does not say that the recording stopped because {why}: {losses}")
    return found


def check_counts(parts, counts, kind):
    begun, allocs, frees_begun, frees = counts
    alloc_events, free_events = (sum(facts["events"].get(name, 0) for facts in parts) for name in ("device_alloc", "device_free"))
    if all(facts["complete"] for facts in parts):
        # A call in flight at the end may not have reached the driver, or may have returned while
        # the end was written. A free in flight is an event, too.
        in_flight = sum(facts["losses"]["in_flight_calls"] for facts in parts)
        if (allocs <= alloc_events + in_flight and alloc_events <= begun + in_flight
                and frees <= free_events + in_flight and free_events <= frees_begun + in_flight):
            return []
        return [f"the trace is called complete and has {alloc_events} allocations of {allocs}, {free_events} frees of {frees}"]
    if kind == "partial":
        return []
    if kind == "counted":
        lost = sum(loss.get("events", 0) for facts in parts for loss in facts["incomplete"])
        # A jump out of a call leaves it in flight, perhaps before the driver saw it.
        in_flight = sum(facts["losses"]["in_flight_calls"] for facts in parts)
        recorded = alloc_events + free_events
        if allocs + frees <= recorded + lost and recorded <= begun + frees_begun + in_flight:
            return []
        return [f"{recorded} calls are recorded ({in_flight} in flight) and {lost} reported as lost, of {allocs + frees}"]
    return [f"the trace is incomplete: {[facts['incomplete'] for facts in parts]}"]


def read_facts(path):
    for code in (0, 6):
        try:
            return json.loads(gpumemtrace("replay", path, "--json", code=code))["traces"][0]
        except AssertionError:
            pass
    return None
