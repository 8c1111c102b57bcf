"""Reads PyTorch snapshots as Python and as PyTorch's viewer do.

A snapshot is never unpickled with code: every global is refused.
"""

import importlib.util
import io
import pickle
import pickletools
from pathlib import Path

from conftest import VENVS
from readers import readers_folder

# The opcodes that MemoryViz.js knows.
VIEWER_OPCODES = {
    "PROTO", "FRAME", "MARK", "STOP", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT",
    "SHORT_BINUNICODE", "BINUNICODE", "EMPTY_LIST", "EMPTY_DICT", "EMPTY_TUPLE", "LIST", "DICT", "TUPLE", "TUPLE1", "TUPLE2",
    "TUPLE3", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET",
}


class PlainUnpickler(pickle.Unpickler):
    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"a snapshot must not name {module}.{name}")


def load_snapshot(path):
    return PlainUnpickler(io.BytesIO(path.read_bytes())).load()


def opcodes(path):
    """Returns the opcodes of a pickle, and the most items that one APPENDS or SETITEMS adds."""
    names, marks, depth, largest = set(), [], 0, 0
    for opcode, _, _ in pickletools.genops(path.read_bytes()):
        names.add(opcode.name)
        if opcode.name == "MARK":
            marks.append(depth)
        elif opcode.name in ("APPENDS", "SETITEMS"):
            items = depth - marks.pop()
            largest = max(largest, items // (1 if opcode.name == "APPENDS" else 2))
            depth -= items
        else:
            depth += len(opcode.stack_after) - len(opcode.stack_before)
    return names, largest


def readers_of_pytorch():
    """Returns PyTorch's `_memory_viz` of each version, by version. The file needs no PyTorch."""
    files = {version: next((venv_site(folder) / "torch" / "cuda").glob("_memory_viz.py")) for version, folder in VENVS.items()}
    files["2.1.2"] = readers_folder() / "torch-2.1.2" / "_memory_viz.py"
    modules = {}
    for version, file in files.items():
        spec = importlib.util.spec_from_file_location("memory_viz_of_" + version.replace(".", "_"), file)
        modules[version] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(modules[version])
    return modules


def venv_site(folder):
    return next(Path(folder).glob("lib/python3*/site-packages"))


def viewed_heights(snapshot, device):
    """Returns the height of the viewer's timeline after each step: the bytes of entries from their
    allocation to the completion of their free. Blocks without an allocation are there from the
    begin."""
    trace, live, changes, before = snapshot["device_traces"][device], {}, [], 0
    for entry in trace:
        if entry["action"] == "alloc":
            live[entry["addr"]] = entry["size"]
            changes.append(entry["size"])
        elif entry["action"] == "free_completed":
            before += 0 if entry["addr"] in live else entry["size"]
            changes.append(-live.pop(entry["addr"], entry["size"]))
    for segment in snapshot["segments"]:
        address = segment["address"]
        for block in segment["blocks"] if segment["device"] == device else []:
            if block["state"] == "active_allocated" and address not in live:
                before += block["requested_size"]
            address += block["size"]
    heights = [before]
    for change in changes:
        heights.append(heights[-1] + change)
    return heights


def rewind(snapshot, device):
    """Undoes all entries of a device as the viewer's "Allocator State History" does. Fails where
    its script would: a block outside all segments, the free of a block that is not there.

    Returns reserved and requested bytes before the first entry."""
    segments, blocks = {}, {}
    for segment in snapshot["segments"]:
        if segment["device"] == device:
            segments[segment["address"]] = segment["total_size"]
            address = segment["address"]
            for block in segment["blocks"]:
                assert block.get("address", address) == address
                if block["state"] != "inactive":
                    blocks[address] = [block["requested_size"], block["state"] == "active_pending_free"]
                address += block["size"]
            assert address == segment["address"] + segment["total_size"], "blocks must tile their segment"
    for entry in reversed(snapshot["device_traces"][device]):
        action, addr, size = entry["action"], entry.get("addr"), entry["size"]
        if action == "free_completed":
            assert addr not in blocks
            blocks[addr] = [size, True]
        elif action == "free_requested":
            assert blocks[addr][1], "the freed block must be pending"
            blocks[addr][1] = False
        elif action == "alloc":
            assert blocks.pop(addr) == [size, False]
        elif action in ("segment_free", "segment_unmap"):
            segments[addr] = size
        elif action in ("segment_alloc", "segment_map"):
            holder = max((start for start in segments if start <= addr), default=None)
            while segments[holder] < addr + size - holder:
                segments[holder] += segments.pop(holder + segments[holder])
            end = holder + segments[holder]
            assert end >= addr + size, "a mapped piece must be in a segment"
            del segments[holder]
            if holder < addr:
                segments[holder] = addr - holder
            if addr + size < end:
                segments[addr + size] = end - addr - size
        if action.startswith("segment") or action == "alloc":
            starts = sorted(segments)
            for block in blocks if action.startswith("segment") else []:
                holder = max((start for start in starts if start <= block), default=None)
                assert holder is not None and block < holder + segments[holder], "a block must be in a segment"
    return sum(segments.values()), sum(size for size, _ in blocks.values())
