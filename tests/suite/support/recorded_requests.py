"""Turns the trace of a program into a request stream of the allocator oracle, and what it did."""

#: First address of the simulated device; reservations begin 5 TiB later, in logs too.
DEVICE_BASE = 0x3000_0000_0000


def requests_of_trace(events, card_bytes, settings):
    """Returns the stream's text, and the lines that its log must have.

    The program uses one thread and no side stream that outlives a block, so every free completes at
    once. Memory of libraries becomes device memory that the allocator does not know.
    """
    segments = {event["addr"] for event in events if event["kind"] == "segment_alloc"}
    streams = sorted({int(event["stream"], 16) for event in events if event["kind"] == "block_alloc"})
    lines = ["allocator-requests 1", f"card_bytes {card_bytes}", f"streams {len(streams)}", f"settings {settings}", "requests"]
    lines = [line for line in lines if line != "settings "]
    head, allocations = len(lines), 0
    log, numbers, outside, pending = [], {}, {}, []
    for event in events:
        kind, addr, size = event["kind"], event["addr"], event["size"]
        if kind == "block_alloc":
            stream = streams.index(int(event["stream"], 16))
            request = len(lines) - head
            log += [f"{sign} {request} {at - DEVICE_BASE:x} {bytes_of} {stream}" for sign, at, bytes_of in pending]
            pending.clear()
            log.append(f"a {addr - DEVICE_BASE:x}")
            numbers[addr] = allocations
            allocations += 1
            lines.append(f"a {event['requested']} {stream}")
        elif kind == "block_free":
            assert event["completed"] == "1"
            lines.append(f"f {numbers.pop(addr)}")
        elif kind in ("segment_alloc", "segment_free", "segment_map", "segment_unmap"):
            pending.append(({"alloc": "+", "free": "-", "map": "<", "unmap": ">"}[kind.removeprefix("segment_")], addr, size))
        elif kind == "device_alloc" and event["api"] == "cuMemAlloc_v2" and addr not in segments:
            outside[addr] = len(outside)
            lines.append(f"m {size}")
        elif kind == "device_free" and addr in outside:
            lines.append(f"w {outside.pop(addr)}")
    assert not pending
    return "\n".join(lines) + "\n", log
