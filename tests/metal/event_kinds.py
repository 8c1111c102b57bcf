"""Causes each kind of event once per device. event_kinds.py [before|after]: another library
swizzles first or last."""

import sys

import metal_double

if "before" in sys.argv:
    metal_double.swizzle()
default = metal_double.default_device()
for number in (0, 1):
    device = metal_double.device(number)
    direct = metal_double.buffer(device, 100)  # line: direct
    if "after" in sys.argv and number == 0:
        metal_double.swizzle()
    again = metal_double.buffer(device, 9000)  # line: direct
    heap = metal_double.heap(device, 1 << 20)  # line: heap
    assert not metal_double.heap(device, 0)  # line: failed
    first = metal_double.heap_buffer(heap, 1000)  # line: block
    second = metal_double.heap_buffer_at(heap, 300, 4096)  # line: block
    assert not metal_double.heap_buffer(heap, 1 << 30)  # line: failed
    image = metal_double.heap_texture(heap, 1000)  # line: block
    texture = metal_double.texture(device, 5000)  # line: direct
    copied = metal_double.copied(device, b"x" * 100, 100)  # line: direct
    mapped = metal_double.no_copy(device, b"x" * 77, 77)  # line: import
    assert metal_double.purgeable(first, 3) == 2  # line: purgeable
    assert metal_double.purgeable(first, 1) == 3
    assert metal_double.purgeable(first, 2) == 3  # line: purgeable
    assert metal_double.purgeable(heap, 4) == 2  # line: purgeable
    metal_double.observe(second)
    metal_double.retain(image)
    metal_double.release(image)
    metal_double.release(heap)
    for one in (direct, again, first, second, image, texture, copied):
        metal_double.release(one)  # line: end
    kept = mapped
print(*(metal_double.foreign_calls(which) for which in range(3)))
