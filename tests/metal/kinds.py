"""Everything that is seen, once for each device: kinds.py [before|after]: another library swizzles before us, or after us."""

import sys

import driven

if "before" in sys.argv:
    driven.swizzle()
default = driven.default_device()
for number in (0, 1):
    device = driven.device(number)
    direct = driven.buffer(device, 100)  # line: direct
    if "after" in sys.argv and number == 0:
        driven.swizzle()
    again = driven.buffer(device, 9000)  # line: direct
    heap = driven.heap(device, 1 << 20)  # line: heap
    assert not driven.heap(device, 0)  # line: failed
    first = driven.heap_buffer(heap, 1000)  # line: block
    second = driven.heap_buffer_at(heap, 300, 4096)  # line: block
    assert not driven.heap_buffer(heap, 1 << 30)  # line: failed
    image = driven.heap_texture(heap, 1000)  # line: block
    texture = driven.texture(device, 5000)  # line: direct
    copied = driven.copied(device, b"x" * 100, 100)  # line: direct
    mapped = driven.no_copy(device, b"x" * 77, 77)  # line: import
    assert driven.purgeable(first, 3) == 2  # line: purgeable
    assert driven.purgeable(first, 1) == 3
    assert driven.purgeable(first, 2) == 3  # line: purgeable
    assert driven.purgeable(heap, 4) == 2  # line: purgeable
    driven.observe(second)
    driven.retain(image)
    driven.release(image)
    driven.release(heap)
    for one in (direct, again, first, second, image, texture, copied):
        driven.release(one)  # line: end
    kept = mapped
print(*(driven.foreign_calls(which) for which in range(3)))
