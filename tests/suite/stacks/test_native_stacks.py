"""Checks native stacks of real PyTorch against the modules on disk.

The unit tests compare with another unwinder. Here the modules are the oracle: a call precedes each
return address, the outermost frame is the thread's entry, and libraries follow their call order.
"""

import struct
from functools import cache
from pathlib import Path

import pytest

from conftest import gpumemtrace, parse_fields

#: On x86-64 a call ends at its return address: e8 plus 4 bytes, or ff /2 plus up to 5 more bytes.
INDIRECT_CALL_LENGTHS = range(2, 8)


@cache
def segments(path):
    """Returns (address, bytes) of each executable segment of a module."""
    image = Path(path).read_bytes()
    offset, = struct.unpack_from("<Q", image, 32)
    size, count = struct.unpack_from("<HH", image, 54)
    found = []
    for at in range(offset, offset + size * count, size):
        kind, flags, begin, address, _, length = struct.unpack_from("<IIQQQQ", image, at)
        if kind == 1 and flags & 1:
            found.append((address, image[begin:begin + length]))
    return found


@cache
def entry_point(path):
    return struct.unpack_from("<Q", Path(path).read_bytes(), 24)[0]


def follows_a_call(path, offset):
    for address, code in segments(path):
        end = offset - address
        if 8 <= end <= len(code):
            if code[end - 5] == 0xE8:
                return True
            for length in INDIRECT_CALL_LENGTHS:
                if code[end - length] == 0xFF and code[end - length + 1] >> 3 & 7 == 2:
                    return True
    return False


class Stacks:
    """The native stacks of one trace."""

    def __init__(self, trace):
        self.nodes = {}
        for line in gpumemtrace("dump", "--stacks", trace).splitlines():
            if line.startswith("native "):
                node = parse_fields(line)
                offset = int(node["offset"], 0) if node["offset"] != "?" else None
                self.nodes[int(node["id"])] = (int(node["parent"]), node["module"], offset)

    def frames(self, node):
        """Returns (module, offset) pairs, innermost first."""
        found = []
        while node:
            node, module, offset = self.nodes[node]
            found.append((module, offset))
        return found


@pytest.fixture(params=["mlp", "transformer"])
def traced(request, run_python, torch_version):
    return run_python(torch_version, "training/train.py", "--model", request.param, GPUMEMTRACE_STACKS="both")


def test_native_stacks_reach_thread_entry_through_calls(traced):
    events, stacks = traced.events(), Stacks(traced.trace)
    assert traced.report()["traces"][0]["losses"]["truncated_stacks"] == 0
    with_stack = [event for event in events if event["native"]]
    assert len(with_stack) > 200 and all(event["native"] for event in events if event["kind"] == "block_alloc")

    # Frees record the line only, without native frames.
    frees = [event for event in events if event["kind"] == "block_free"]
    assert frees and all(bool(event["native"]) != bool(event["python"]) for event in frees)

    # Every return address follows a call in a known module.
    for _, module, offset in stacks.nodes.values():
        assert module != "?", "an address in no module"
        assert module.startswith("linux-vdso") or follows_a_call(module, offset), (module, offset)

    # Every stack reaches the entry point of its thread.
    main = events[0]["tid"]
    for node, tid in {(event["native"], event["tid"]) for event in with_stack}:
        module, offset = stacks.frames(node)[-1]
        if tid == main:
            assert 0 < offset - entry_point(module) < 64, ("_start", module, offset)
        else:
            assert Path(module).name.startswith(("libc.so", "libpthread")), (module, offset)


def test_library_order_matches_call_order(traced):
    events, stacks = traced.events(), Stacks(traced.trace)
    main = events[0]["tid"]
    expected = ["libgpumemtrace.so", "libc10", "libtorch_", "libtorch_python.so", "python"]
    in_order = total = 0
    for event in events:
        if event["kind"] != "block_alloc" or event["tid"] != main:
            continue
        names = [Path(module).name for module, _ in stacks.frames(event["native"])]
        total += 1
        places = [next((at for at, name in enumerate(names) if wanted in name), None) for wanted in expected]
        assert names[0] == "libgpumemtrace.so" and places[1] is not None, names
        in_order += None not in places and places == sorted(places)
        # Every allocation of this program goes through Python.
        assert "python" in names[-1], names
    assert total > 50 and in_order == total


def test_depth_limit_keeps_innermost_frames(run_python, torch_version):
    run = run_python(torch_version, "training/train.py", GPUMEMTRACE_STACKS="native", GPUMEMTRACE_DEPTH=9)
    events, stacks = run.events(), Stacks(run.trace)
    depths = {len(stacks.frames(event["native"])) for event in events if event["kind"] == "block_alloc"}
    assert depths == {9}
    assert all(Path(stacks.frames(event["native"])[0][0]).name == "libgpumemtrace.so" for event in events if event["native"])
    assert run.report()["traces"][0]["losses"]["truncated_stacks"] >= sum(event["kind"] == "block_alloc" for event in events)
