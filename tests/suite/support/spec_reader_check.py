"""Compares the independent reader (spec_reader.py) with `gpumemtrace dump`."""

import json
import re

from conftest import gpumemtrace, parse_fields
from stack_dump import FIELD

KINDS = {"device_alloc": 1, "device_free": 2, "block_alloc": 64, "block_free": 65, "block_free_completed": 67,
         "torch_memory": 101}
QUOTED_API = re.compile(r' api=("[^"]*")')
LINKS = {1: "python", 2: "c", 3: "backward"}


def compare(trace, path):
    """Compares events and definitions of a Trace with the command's output."""
    lines = gpumemtrace("dump", path, "--stacks").splitlines()
    # Names of Objective-C methods contain spaces.
    printed = [parse_fields(line) | {"api": json.loads(api[1]) if (api := QUOTED_API.search(line)) else parse_fields(line)["api"]}
               for line in lines if line.startswith("seq=")]
    ours = sorted(trace.events, key=lambda event: event["seq"])
    assert len(ours) == len(printed) > 100
    for event, other in zip(ours, printed):
        assert (event["seq"], event["time_ns"], event["tid"]) == tuple(int(other[name]) for name in ("seq", "time_ns", "tid"))
        assert KINDS.get(other["kind"], event["kind"]) == event["kind"]
        numbers = {name: int(other[name], 0) for name in ("addr", "size", "aux0", "aux1", "rc", "python", "native")}
        assert {name: event[name] for name in numbers} == numbers
        assert other["dev"] == ("?" if event["dev"] == 255 else str(event["dev"]))
        assert other["api"] == (trace.meta["apis"][event["api"]] if event["api"] else "-")
        detail = {name: int(other[name], 0) for name in ("requested", "stream", "pool") if name in other}
        assert {name: event[name] for name in ("requested", "stream", "pool") if name in event} == detail
    frames = {}
    for line in lines:
        kind = line.split(" ", 1)[0]
        if kind in ("frame", "native", "code"):
            fields = {key: json.loads(text) if text.startswith('"') else text for key, text in FIELD.findall(line)}
            frames[kind, int(fields["id"])] = fields
    assert len(frames) == len(trace.codes) + len(trace.python) + len(trace.native)
    for number, node in trace.python.items():
        frame = frames["frame", number]
        assert int(frame["parent"]) == node["parent"]
        assert frame.get("link") == LINKS.get(trace.links[number])
        if code := trace.codes.get(node["code"]):
            assert (frame["file"], frame["function"]) == (code["file"], code["name"])
    for number, node in trace.native.items():
        assert int(frames["native", number]["address"], 0) == node["address"]
