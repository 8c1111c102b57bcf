"""Reads traces without gpumemtrace.

Written from docs/trace-format.md alone, as a test of that page.

usage: spec_reader.py FILE...     parts in their order, the stacks file first
"""

import io
import struct
import sys

import zstandard

COLUMNS = ["RUNS", "KIND", "DEVICE", "API", "FLAGS", "RESULT", "SEQ", "TIME", "AGE", "ADDR", "SIZE", "AUX0", "AUX1", "PYTHON",
               "NATIVE", "REQUESTED", "STREAM", "POOL", "REUSE"]
BYTE_COLUMNS = {"KIND", "DEVICE", "API", "FLAGS"}
BLOCK_ALLOC, BLOCK_FREE = 64, 65
ALLOCATIONS, FREES = {1, 8, BLOCK_ALLOC}, {2, 9, BLOCK_FREE}
WRAP = 1 << 64


def crc_table():
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        yield value


CRC = list(crc_table())


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


class PayloadReader:
    """A cursor over a payload."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        assert self.at + count <= len(self.data), "data ends inside a value"
        self.at += count
        return self.data[self.at - count:self.at]

    def byte(self):
        return self.take(1)[0]

    def varint(self):
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                assert value < WRAP, "more than 64 bits"
                return value
            shift += 7

    def signed(self):
        folded = self.varint()
        return folded >> 1 ^ -(folded & 1)

    def delta(self, previous):
        return (previous + self.signed()) % WRAP

    def bytes(self):
        return self.take(self.varint())

    def text(self):
        return self.bytes().decode()

    def fixed(self, form):
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))[0]

    def string(self):
        return self.take(self.fixed("Q")).decode()

    def is_empty(self):
        return self.at == len(self.data)


def meta(payload):
    values = {}
    for _ in range(payload.fixed("Q")):
        name = payload.string()
        variant = payload.fixed("I")
        if variant == 0:
            values[name] = payload.fixed("Q")
        elif variant == 1:
            values[name] = payload.string()
        else:
            values[name] = [payload.string() for _ in range(payload.fixed("Q"))]
    return values


def end(payload):
    reason = payload.fixed("I")
    status = payload.fixed("i") if reason == 1 else None
    return {"reason": ["exit", "quick_exit", "stopped"][reason], "status": status, "events": payload.fixed("Q"),
            "time_ns": payload.fixed("Q"), "message": payload.string(),
            "counters": {payload.string(): payload.fixed("Q") for _ in range(payload.fixed("Q"))}}


def codes(payload):
    for _ in range(payload.varint()):
        yield {"id": payload.varint(), "first_line": payload.signed(), "python": payload.varint(), "truncated": payload.byte(),
               "file": payload.text(), "name": payload.text(), "line_table": payload.bytes()}


def nodes(payload, is_native):
    node = address = 0
    for _ in range(payload.varint()):
        node = payload.delta(node)
        parent = payload.varint()
        if is_native:
            address = payload.delta(address)
            yield {"id": node, "parent": parent, "address": address}
        else:
            yield {"id": node, "parent": parent, "code": payload.varint(), "offset": payload.signed()}


def links(payload):
    node = 0
    for _ in range(payload.varint()):
        node = payload.delta(node)
        yield node, payload.byte()


def index(payload):
    names = ["previous", "placed", "unplaced", "lowest", "beyond", "threads", "codes", "py_nodes", "native_nodes", "modules"]
    sums = {name: payload.varint() for name in names}
    sums["kinds"] = {payload.byte(): payload.varint() for _ in range(payload.varint())}
    sums["metas"] = [payload.varint() for _ in range(payload.varint())]
    sums["blocks"] = [(payload.byte(), payload.varint(), payload.varint()) for _ in range(payload.varint())]
    assert payload.is_empty()
    return sums


class NumberColumn:
    """A column of an EVENTS block: bytes or numbers. A missing column is all 0."""

    def __init__(self, values=None):
        self.values, self.at = values, 0

    def next(self):
        if self.values is None:
            return 0
        self.at += 1
        return self.values[self.at - 1]

    def delta(self, previous):
        folded = self.next()
        return (previous + (folded >> 1 ^ -(folded & 1))) % WRAP

    def is_empty(self):
        return self.values is None or self.at == len(self.values)


def in_planes(payload):
    values = [0] * payload.varint()
    places, shift = list(range(len(values))), 0
    while places:
        plane = payload.take(len(places))
        for place, byte in zip(places, plane):
            values[place] |= (byte & 0x7F) << shift
        places = [place for place, byte in zip(places, plane) if byte >= 0x80]
        shift += 7
    assert payload.is_empty() and all(value < WRAP for value in values)
    return values


class StackPredictor:
    """Decodes a column of nodes: 0 is the node that followed the previous one the last time."""

    def __init__(self):
        self.slots, self.previous = [0] * 4096, 0

    def next(self, number):
        slot = self.previous % 4096
        self.previous = self.slots[slot] = number - 1 if number else self.slots[slot]
        return self.previous


def events(payload):
    count, shift = payload.varint(), payload.byte()
    columns = {name: NumberColumn() for name in COLUMNS}
    while not payload.is_empty():
        number = payload.byte()
        data = payload.bytes()
        if number < len(COLUMNS):
            name = COLUMNS[number]
            columns[name] = NumberColumn(data if name in BYTE_COLUMNS else in_planes(PayloadReader(data)))
    take_next = {name: column.next for name, column in columns.items()}
    threads = []
    while len(threads) < count:
        thread = take_next["RUNS"]()
        threads += [thread] * take_next["RUNS"]()
    seq, units, stream, pool, first_addr = WRAP - 1, 0, 0, 0, None
    last_addr, totals, last_aux, allocations, freed_addrs = {}, {}, {}, [], []
    nodes = {"PYTHON": StackPredictor(), "NATIVE": StackPredictor()}
    for thread in threads:
        kind, flags = take_next["KIND"](), take_next["FLAGS"]()
        row = {"tid": thread, "kind": kind, "api": take_next["API"](), "in_flight": bool(flags & 0x80), "flags": flags & 0x3F,
               "rc": take_next["RESULT"]()}
        row["seq"] = seq = columns["SEQ"].delta((seq + 1) % WRAP)
        units = columns["TIME"].delta(units)
        row["time_ns"] = units << shift
        age = take_next["AGE"]() if kind in FREES else 0
        named = allocations[-age] if age else None
        reuse = take_next["REUSE"]() if kind in ALLOCATIONS else 0
        if named:
            freed_addrs.append(named["addr"])
            assert ("requested" in named) == bool(flags & 0x40)
            row |= {name: named[name] for name in ("addr", "dev", "requested", "stream", "pool") if name in named}
        else:
            row["dev"] = take_next["DEVICE"]()
            if reuse:
                row["addr"] = freed_addrs[-reuse]
            elif kind in ALLOCATIONS | FREES:
                row["addr"] = columns["ADDR"].delta(first_addr or 0)
                first_addr = row["addr"] if first_addr is None else first_addr
            else:
                row["addr"] = last_addr[kind] = columns["ADDR"].delta(last_addr.get(kind, 0))
            if flags & 0x40:
                row["requested"] = take_next["REQUESTED"]()
                row["stream"] = stream = columns["STREAM"].delta(stream)
                row["pool"] = pool = columns["POOL"].delta(pool)
        if named and kind == BLOCK_FREE:
            row["size"] = named["size"]
        elif flags & 0x40:
            row["size"] = columns["SIZE"].delta((row["requested"] + 511) // 512 * 512 % WRAP)
        else:
            row["size"] = take_next["SIZE"]()
        if kind in ALLOCATIONS:
            allocations.append(row)
        add_aux(row, columns, totals, last_aux)
        for name, predictor in nodes.items():
            row[name.lower()] = predictor.next(take_next[name]())
        yield row
    assert all(column.is_empty() for column in columns.values())


def add_aux(row, column, totals, last_aux):
    kind, device, size = row["kind"], row["dev"], row["size"]
    if kind in (BLOCK_ALLOC, BLOCK_FREE):
        allocated, reserved = totals.get(device, (0, 0))
        expected = ((allocated + (size if kind == BLOCK_ALLOC else -size)) % WRAP, reserved)
    else:
        expected = last_aux.get(kind, (0, 0))
    aux = column["AUX0"].delta(expected[0]), column["AUX1"].delta(expected[1])
    row["aux0"], row["aux1"] = aux
    if kind in (BLOCK_ALLOC, BLOCK_FREE):
        totals[device] = aux
    else:
        last_aux[kind] = aux


def unpacked(stored, raw_len):
    return zstandard.ZstdDecompressor().decompress(stored, max_output_size=raw_len)


def pieces(stored):
    stored, raw = PayloadReader(stored), b""
    while not stored.is_empty():
        form, length = stored.byte(), stored.varint()
        if form == 0:
            raw += stored.take(length)
        elif form == 1:
            piece = unpacked(stored.bytes(), length)
            assert len(piece) == length
            raw += piece
        else:
            assert form == 2
            raw += stored.take(1) * length
    return raw


def blocks(file):
    """Yields (kind, offset, payload) of an undamaged file."""
    header = file.read(16)
    assert header[:8] == b"gpumtrc\n" and struct.unpack("<II", header[8:]) == (1, crc32c(header[:12]))
    while head := file.read(24):
        at = file.tell() - len(head)
        sync, kind, encoding, _, stored_len, raw_len, payload_crc, header_crc = struct.unpack("<4sBBHIIII", head)
        assert sync == b"GMTB" and header_crc == crc32c(head[:20])
        stored = file.read(stored_len)
        if len(stored) < stored_len:
            return
        assert payload_crc == crc32c(stored)
        assert encoding < 3
        payload = [lambda: stored, lambda: unpacked(stored, raw_len), lambda: pieces(stored)][encoding]()
        assert len(payload) == raw_len
        yield kind, at, PayloadReader(payload)


class Trace:
    """The contents of files, read one after the other."""

    def __init__(self, paths):
        self.meta, self.end, self.tail = {}, None, None
        self.codes, self.python, self.native, self.links, self.events, self.indexes = {}, {}, {}, {}, [], []
        for path in paths:
            with open(path, "rb") as file:
                for kind, at, payload in blocks(io.BytesIO(file.read())):
                    self.take(kind, at, payload)

    def take(self, kind, at, payload):
        if kind == 1:
            self.meta |= meta(payload)
        elif kind == 2:
            self.events += events(payload)
        elif kind == 3:
            self.codes |= {code["id"]: code for code in codes(payload)}
        elif kind in (4, 5):
            into = self.native if kind == 5 else self.python
            into |= {node["id"]: node for node in nodes(payload, kind == 5)}
        elif kind == 7:
            self.end = end(payload) | {"at": at}
        elif kind == 9:
            self.links |= dict(links(payload))
        elif kind == 10:
            self.indexes.append(index(payload) | {"at": at})
        elif kind == 11:
            self.tail = {"at": at, "index": payload.fixed("Q"), "end": payload.fixed("Q")}

    def torch_memory(self):
        """PyTorch's (tensor bytes, driver bytes) in order; `None` for a number it did not report."""
        samples = sorted((event["seq"], event["size"], event["aux0"]) for event in self.events if event["kind"] == 101)
        return [tuple(None if number == WRAP - 1 else number for number in numbers) for _, *numbers in samples]


if __name__ == "__main__":
    trace = Trace(sys.argv[1:])
    for event in sorted(trace.events, key=lambda event: event["seq"]):
        print(event)
