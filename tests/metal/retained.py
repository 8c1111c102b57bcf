"""The MPS allocator's calls in a training that retains validation outputs: heaps, reused buffers,
and a leaked buffer every fourth step. retained.py [STEPS] [--mended]"""

import sys

import metal_double

STEPS = int(sys.argv[1]) if sys.argv[1:] and sys.argv[1].isdigit() else 120
HEAP, BLOCK = 8 << 20, 1 << 20
device = metal_double.default_device()
heaps, free = [], []
checked = []


def block():
    """Returns the first free place in a heap, in a new heap if needed."""
    if not free:
        heaps.append(metal_double.heap(device, HEAP))
        free.extend((heaps[-1], at) for at in range(0, HEAP, BLOCK))
    heap, at = free.pop(0)
    return heap, at


def allocate():
    heap, at = block()
    return metal_double.heap_buffer_at(heap, BLOCK - 1000, at), (heap, at)


def give_back(held):
    made, place = held
    metal_double.release(made)
    free.insert(0, place)


def train():
    activations = [allocate() for _ in range(12)]  # line: activations
    metal_double.release(metal_double.texture(device, 70_000))
    for held in activations:
        give_back(held)


def validate():
    checked.append(allocate())  # line: retained
    if "--mended" in sys.argv:
        give_back(checked.pop())


for number in range(STEPS):
    metal_double.step()
    train()
    if number % 4 == 3:
        validate()
