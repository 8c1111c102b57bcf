"""Compares the trace of a killed run with the simulated driver's log, call by call.

The log is the oracle: the driver appends a line before each call returns, in one system call, so
it survives SIGKILL. A call that was logged but had not returned is in flight in the trace.
"""

import json
import subprocess
from collections import Counter, defaultdict
from dataclasses import dataclass, field

#: Logged calls that the trace does not record: both are queries.
NOT_EVENTS = {"cuMemGetAllocationGranularity", "cuMemGetInfo_v2"}
#: Calls that start or end the use of an address. Of one address they have one order.
ALLOCATIONS = {"cuMemAlloc_v2", "cuMemFree_v2"}
#: Exit codes of the command: complete, unreadable, incomplete.
COMPLETE, UNREADABLE, INCOMPLETE = 0, 5, 6


class Wrong(Exception):
    """The trace disagrees with the log, or the command with itself."""


@dataclass
class Outcome:
    """What one trace has of the calls that the driver logged."""

    calls: int = 0
    #: Logged calls that are neither in the trace nor in flight.
    missing: int = 0
    #: Of the missing calls, those in a trace that says that it is incomplete.
    reported: int = 0
    in_flight: int = 0
    #: Events of all kinds in the trace.
    events: int = 0
    complete: bool = False
    end: str = "unknown"
    incomplete: list = field(default_factory=list)
    #: The file ends inside a block.
    is_cut: bool = False


def check(held, problem):
    if not held:
        raise Wrong(problem)


def run_command(command, *arguments):
    done = subprocess.run([command, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    check(done.returncode in (COMPLETE, UNREADABLE, INCOMPLETE),
          f"{arguments[0]} exited with {done.returncode}: {done.stderr[-500:]}")
    return done


def read_log(path, pid):
    """Returns per thread the calls of one process, as (api, result, address, size), in order."""
    threads, expected = defaultdict(list), 1
    if not path.exists():
        return threads
    # SIGKILL may have cut the last line.
    for line in path.read_text().split("\n")[:-1]:
        number, process, thread, api, _, address, size, _, result, _ = line.split(" ", 9)
        if int(process) != pid:
            continue
        check(int(number) == expected, f"the driver's log has a gap before call {number}")
        expected += 1
        if api not in NOT_EVENTS:
            threads[int(thread)].append((api, result, address if result == "0" else None, int(size)))
    return threads


@dataclass
class Trace:
    """The driver calls of a trace by thread, and what else the checks need."""

    threads: dict = field(default_factory=lambda: defaultdict(list))
    in_flight: dict = field(default_factory=lambda: defaultdict(list))
    by_address: dict = field(default_factory=lambda: defaultdict(list))
    events: int = 0
    highest_seq: int = -1
    #: Allocations and frees of PyTorch's blocks.
    blocks: Counter = field(default_factory=Counter)
    #: Running totals of PyTorch's allocator that disagree with the sum of its blocks.
    wrong_totals: int = 0


def read_trace(command, path):
    done = run_command(command, "dump", path)
    trace, total = Trace(), 0
    for line in done.stdout.split("\n"):
        if not line.startswith("seq="):
            continue
        trace.events += 1
        words = line.split(" ")
        seq, thread, kind, api = words[0][4:], words[2][4:], words[3][5:], words[4][4:]
        address, size = words[6][5:], int(words[7][5:])
        if words[-1] == "in_flight":
            trace.in_flight[int(thread)].append((api, seq))
            continue
        check(int(seq) > trace.highest_seq, f"event {seq} comes twice or in the wrong order")
        trace.highest_seq = int(seq)
        if api == "-" or kind == "memory_sample":
            if kind in ("block_alloc", "block_free"):
                trace.blocks[kind] += 1
                total += size if kind == "block_alloc" else -size
                trace.wrong_totals += int(words[8][5:]) != total
            continue
        result = words[10][3:]
        call = (api, result, address if result == "0" else None, size)
        trace.threads[int(thread)].append(call)
        if api in ALLOCATIONS and result == "0":
            trace.by_address[address].append((thread, api))
    return trace, done.returncode


def equal(event, call):
    """Frees have no size in the trace; a failed call has no address."""
    return event[:3] == call[:3] and event[3] in (0, call[3])


def compare_thread(thread, known, calls, in_flight, drops_oldest):
    """Returns the calls at the start and at the end of the log that the trace of a thread lacks."""
    check(len(in_flight) <= 1, f"thread {thread} has {len(in_flight)} calls in flight")
    first = 0
    if drops_oldest:
        # The kept calls are the last ones, but for one that is logged and in flight. Its position
        # comes first: no kept call matches at the very end too.
        is_last_in_flight = bool(in_flight and calls) and in_flight[0][0] == calls[-1][0]
        starts = [len(calls) - len(known) - 1] * is_last_in_flight + [len(calls) - len(known)]
        matches = lambda at: at >= 0 and all(equal(event, call) for event, call in zip(known, calls[at:]))
        first = next((at for at in starts if matches(at)), 0)
    check(len(known) <= len(calls) - first, f"thread {thread} has {len(known)} calls in the trace and {len(calls)} in the log")
    for number, event in enumerate(known):
        if not equal(event, calls[first + number]):
            raise Wrong(f"thread {thread}: call {number} is {event} in the trace and {calls[first + number]} in the log")
    rest = calls[first + len(known):]
    if rest and in_flight and in_flight[0][0] == rest[0][0]:
        return first, rest[1:], rest[:1]
    return first, rest, []


def check_address_order(path, pid, trace, kept):
    """Checks the order of calls across threads: of one address, the log's order is the trace's.

    `kept` has, per thread, the range of its logged calls that the trace has.
    """
    numbers, by_address = defaultdict(int), defaultdict(list)
    for line in path.read_text().split("\n")[:-1]:
        _, process, thread, api, _, address, _, _, result, _ = line.split(" ", 9)
        if int(process) != pid or api in NOT_EVENTS:
            continue
        number = numbers[thread]
        numbers[thread] += 1
        if api in ALLOCATIONS and result == "0" and number in kept[int(thread)]:
            by_address[address].append((thread, api))
    for address, calls in trace.by_address.items():
        check(calls == by_address[address], f"calls for {address} of several threads are in another order")


def compare(command, trace, log, pid, *, may_lose=False, drops_oldest=False, one_device_blocks=False, least_blocks=(0, 0), torn_write=False):
    """Compares one trace with the log. Raises `Wrong` on a lost, invented or misplaced event.

    `may_lose`: the recording may end early, as on a full disk; the report must then say so.
    `drops_oldest`: the oldest parts may be deleted; the report must then count them.
    `one_device_blocks`: PyTorch's running totals must equal the sum of the blocks.
    `torn_write`: the kill may have cut a block that no ring has, such as metadata.
    `least_blocks`: allocations and frees that PyTorch had counted some time before the kill.
    """
    logged = read_log(log, pid)
    outcome = Outcome(calls=sum(map(len, logged.values())))
    info = run_command(command, "info", "--verify", trace) if trace.exists() else None
    if info is None or info.returncode == UNREADABLE:
        check(outcome.calls == 0 or may_lose, f"no readable trace, but {outcome.calls} calls: {info and info.stderr}")
        outcome.missing = outcome.reported = outcome.calls
        outcome.end = "no trace" if info is None else "empty"
        return outcome
    replay = run_command(command, "replay", "--json", trace)
    facts = json.loads(replay.stdout)["traces"][0]
    outcome.complete, outcome.end, outcome.incomplete = facts["complete"], facts["end"], [loss["message"] for loss in facts["incomplete"]]
    outcome.is_cut = any(loss["kind"] == "cut_block" for loss in facts["incomplete"])
    check(facts["pid"] == pid, "the trace is of another process")
    expected = COMPLETE if outcome.complete else INCOMPLETE
    check((info.returncode, replay.returncode) == (expected, expected),
          f"complete is {outcome.complete}, but info exited with {info.returncode} and replay with {replay.returncode}")
    says = "complete: yes" if outcome.complete else "complete: no"
    check(says in info.stdout and outcome.complete == (not outcome.incomplete), "info and replay disagree")

    events, code = read_trace(command, trace)
    check(code == expected, f"dump exited with {code}, replay with {expected}")
    outcome.events = events.events
    check(not set(events.threads) - set(logged), "the trace has calls of threads that are not in the log")
    dropped, kept = 0, {}
    for thread, calls in logged.items():
        first, rest, open_call = compare_thread(thread, events.threads.get(thread, []), calls, events.in_flight.get(thread, []), drops_oldest)
        dropped += first
        outcome.missing += first + len(rest)
        outcome.in_flight += len(open_call)
        kept[thread] = range(first, len(calls) - len(rest) - len(open_call))
    in_flight = sum(map(len, events.in_flight.values()))
    counted = facts["losses"]["in_flight_calls"]
    check(in_flight <= counted <= len(logged) + in_flight, f"dump shows {in_flight} calls in flight, replay counts {counted}")
    check_address_order(log, pid, events, kept)
    if one_device_blocks and not dropped:
        check(events.wrong_totals == 0, f"{events.wrong_totals} running totals differ from the sum of the blocks")
    blocks = events.blocks["block_alloc"], events.blocks["block_free"]
    check(all(map(int.__ge__, blocks, least_blocks)), f"PyTorch had counted {least_blocks} blocks, the trace has {blocks}")
    if not outcome.complete:
        is_torn = torn_write and all(loss["kind"] == "cut_block" for loss in facts["incomplete"])
        check(may_lose or drops_oldest or is_torn and not outcome.missing, f"the trace says that it is incomplete: {outcome.incomplete}")
        outcome.reported = outcome.missing
    check(outcome.missing == outcome.reported, f"{outcome.missing} calls are missing from a trace that says it is complete")
    if drops_oldest:
        check(outcome.missing == dropped, f"{outcome.missing - dropped} calls are missing at the end")
        counted = sum(loss["events"] for loss in facts["incomplete"] if loss["kind"] == "dropped_parts")
        check(counted >= dropped, f"the report counts {counted} deleted events, but {dropped} calls are missing")
    return outcome
