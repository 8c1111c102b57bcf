"""Decodes a Perfetto trace with Perfetto's own schema, checks it, and prints what it holds as JSON.

Runs beside the readers' packages.  usage: perfetto_check.py TRACE
"""

import json
import sys
from collections import defaultdict

from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent

REALTIME = 1
NEEDS_STATE = 2
#: Of an interned value, the fields that mention others: field of the value, list of the other.
MENTIONS = {
    "frames": [("function_name_id", "function_names"), ("mapping_id", "mappings"), ("source_path_iid", "source_paths")],
    "mappings": [("path_string_ids", "mapping_paths"), ("build_id", "build_ids")],
    "callstacks": [("frame_ids", "frames")],
}


def packets_of(data):
    """Yields the bytes of each packet, read without the schema."""
    at = 0
    while at < len(data):
        assert data[at] == 0x0A, f"byte {at} begins no packet"
        length = shift = 0
        while True:
            at += 1
            length |= (data[at] & 0x7F) << shift
            shift += 7
            if data[at] < 0x80:
                break
        at += 1
        yield data[at:at + length]
        at += length
    assert at == len(data), "the last packet is cut"


def assert_known(message):
    """Fails if the message, or one inside it, has a field that the schema lacks."""
    assert not len(UnknownFieldSet(message)), f"unknown field in {type(message).__name__}: {message}"
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for one in value if field.is_repeated else [value]:
                assert_known(one)


class Sequence:
    """The interned data and the heap of one sequence."""

    def __init__(self):
        self.interned = defaultdict(dict)
        self.is_cleared = False
        self.totals = {}
        self.profiles = 0

    def intern(self, data):
        # Readers take a message as a whole, so values may mention those that follow in it.
        new = [(field.name, value) for field, values in data.ListFields() for value in values]
        for kind, value in new:
            assert value.iid and value.iid not in self.interned[kind], f"{kind} {value.iid} is not new"
            self.interned[kind][value.iid] = value
        for kind, value in new:
            for name, other in MENTIONS.get(kind, []):
                ids = getattr(value, name)
                for iid in [ids] if isinstance(ids, int) else ids:
                    assert iid == 0 or iid in self.interned[other], f"{kind} {value.iid} mentions {other} {iid}"

    def frames(self, callstack):
        for iid in self.interned["callstacks"][callstack].frame_ids:
            frame = self.interned["frames"][iid]
            yield self.interned["function_names"][frame.function_name_id].str.decode()


def check(path):
    data = open(path, "rb").read()
    sequences = defaultdict(Sequence)
    tracks, processes, events, heaps = {}, {}, [], []
    clock = None
    for raw in packets_of(data):
        packet = TracePacket.FromString(raw)
        assert_known(packet)
        again = packet.SerializeToString()
        assert len(again) == len(raw) and TracePacket.FromString(again) == packet, packet
        sequence = sequences[packet.trusted_packet_sequence_id]
        assert packet.trusted_packet_sequence_id
        if packet.sequence_flags & 1:
            assert not sequence.is_cleared
            sequence.is_cleared = True
        assert not packet.sequence_flags & NEEDS_STATE or sequence.is_cleared
        if packet.HasField("interned_data"):
            sequence.intern(packet.interned_data)
        assert not packet.HasField("timestamp") or packet.timestamp_clock_id == REALTIME
        kind = packet.WhichOneof("data")
        if kind == "clock_snapshot":
            clock = {one.clock_id: one.timestamp for one in packet.clock_snapshot.clocks}
        elif kind == "track_descriptor":
            track = packet.track_descriptor
            assert track.uuid and track.uuid not in tracks, f"track {track.uuid} is described twice"
            assert not track.HasField("parent_uuid") or track.parent_uuid in tracks
            tracks[track.uuid] = track
            if track.HasField("process"):
                assert track.process.pid not in processes
                processes[track.process.pid] = track.process.process_name
        elif kind == "track_event":
            event = packet.track_event
            assert event.track_uuid in tracks
            assert not event.name_iid or event.name_iid in sequence.interned["event_names"]
            assert all(iid in sequence.interned["event_categories"] for iid in event.category_iids)
            name = sequence.interned["event_names"][event.name_iid].name if event.name_iid else event.name
            events.append((packet.trusted_packet_sequence_id, packet.timestamp, event, name))
        elif kind == "profile_packet":
            heaps.append(read_heap(sequence, packet, clock))
    return {"clock": clock, "processes": processes, "heaps": merge_continued(heaps), **read_events(tracks, events)}


def read_heap(sequence, packet, clock):
    profile = packet.profile_packet
    assert profile.index == sequence.profiles
    sequence.profiles += 1
    [dump] = profile.process_dumps
    # 4 is CLOCK_MONOTONIC_COARSE.
    assert dump.timestamp - clock[4] == packet.timestamp - clock[REALTIME]
    for sample in dump.samples:
        assert sample.callstack_id in sequence.interned["callstacks"]
        now = (sample.self_allocated, sample.self_freed, sample.alloc_count, sample.free_count)
        before = sequence.totals.get(sample.callstack_id, (0, 0, 0, 0))
        assert all(new >= old for new, old in zip(now, before)), "totals fell"
        assert now[0] >= now[1] and now[2] >= now[3], "more was freed than allocated"
        sequence.totals[sample.callstack_id] = now
    stacks = [[list(sequence.frames(stack)), total[0] - total[1], total[2] - total[3]]
              for stack, total in sequence.totals.items()]
    return {"pid": dump.pid, "heap": dump.heap_name, "time": packet.timestamp, "continued": profile.continued,
            "stacks": stacks, "allocated": sum(total[0] for total in sequence.totals.values())}


def merge_continued(heaps):
    assert not heaps or not heaps[-1]["continued"]
    return [heap for heap in heaps if not heap["continued"]]


def read_events(tracks, events):
    def process_of(uuid):
        while uuid and not tracks[uuid].HasField("process") and not tracks[uuid].HasField("thread"):
            uuid = tracks[uuid].parent_uuid
        if not uuid:
            return None
        track = tracks[uuid]
        return track.process.pid if track.HasField("process") else track.thread.pid

    counters, slices, instants, open_slices, last = defaultdict(list), [], [], defaultdict(list), {}
    # Readers sort by time, and keep the order of the file among equals.
    for sequence, time, event, name in sorted(events, key=lambda event: event[1]):
        uuid = event.track_uuid
        where = [process_of(uuid), tracks[uuid].name or tracks[uuid].thread.thread_name]
        if event.type == TrackEvent.TYPE_COUNTER:
            assert tracks[uuid].HasField("counter")
            value = event.counter_value if event.HasField("counter_value") else event.double_counter_value
            assert value >= 0
            counters[tuple(where)].append([time, value])
        elif event.type == TrackEvent.TYPE_SLICE_BEGIN:
            open_slices[uuid].append((name, time))
        elif event.type == TrackEvent.TYPE_SLICE_END:
            begun, begin = open_slices[uuid].pop()
            slices.append([*where, begun, begin, time])
        else:
            assert event.type == TrackEvent.TYPE_INSTANT
            notes = {note.name: note.string_value or note.uint_value or note.int_value for note in event.debug_annotations}
            instants.append([*where, name, time, notes])
    assert not any(open_slices.values()), "a slice has no end"
    # The tracks of a run are written in the order of time.
    for sequence, time, event, name in events:
        if event.type == TrackEvent.TYPE_COUNTER:
            assert last.get(event.track_uuid, 0) <= time
            last[event.track_uuid] = time
    return {"counters": [[*where, points] for where, points in counters.items()], "slices": slices, "instants": instants}


if __name__ == "__main__":
    Trace.FromString(open(sys.argv[1], "rb").read())
    print(json.dumps(check(sys.argv[1])))
