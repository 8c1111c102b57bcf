"""Allocates from every kind of Python code and writes the stack that CPython sees at each call.

Needs no PyTorch: it calls the driver through ctypes, which also releases the GIL. Each allocation
has a unique size, which identifies its event. Output: JSON, size -> [[file, line, function], ...].
"""

import asyncio
import ctypes
import json
import sys
import threading

driver = ctypes.CDLL(sys.argv[1])
expected = {}
next_size = 512


def check(result):
    if result:
        raise RuntimeError(f"driver error {result}")


def allocate():
    """Makes one driver call; the test checks the caller's line."""
    global next_size
    next_size += 512
    size = next_size
    pointer = ctypes.c_uint64()
    frame = sys._getframe()
    stack = []
    walked = frame.f_back
    while walked is not None:
        stack.append([walked.f_code.co_filename, walked.f_lineno, getattr(walked.f_code, "co_qualname", walked.f_code.co_name)])
        walked = walked.f_back
    line = frame.f_lineno + 2
    expected[size] = [[__file__, line, "allocate"], *stack]
    check(driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)))


class Thing:
    def __init__(self):
        allocate()

    def method(self):
        allocate()

    @staticmethod
    def static():
        allocate()

    @property
    def value(self):
        allocate()
        return 1

    def __enter__(self):
        allocate()
        return self

    def __exit__(self, *_):
        allocate()

    def __lt__(self, other):
        allocate()
        return False

    def __del__(self):
        allocate()


def generator():
    for _ in range(2):
        allocate()
        yield
        allocate()


def delegating():
    yield from generator()


async def coroutine():
    allocate()
    await asyncio.sleep(0)
    allocate()


def recursive(depth):
    if depth == 0:
        allocate()
        return
    recursive(depth - 1)


def decorated(function):
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


@decorated
def behind_a_decorator():
    allocate()


def many_lines():
    x = 1
    y = (
        x
        + (allocate() or 1)
        + x
    )
    if y:
        allocate()
    try:
        raise ValueError
    except ValueError:
        allocate()
    finally:
        allocate()
    return [
        allocate()
        for _ in range(2)
    ]


def shapes():
    thing = Thing()
    thing.method()
    Thing.static()
    thing.value
    with thing:
        allocate()
    sorted([thing, Thing()])
    list(generator())
    list(delegating())
    asyncio.run(coroutine())
    recursive(60)
    behind_a_decorator()
    (lambda: allocate())()
    many_lines()
    list(map(lambda _: allocate(), range(2)))
    max([3, 1, 2], key=lambda x: allocate() or x)
    exec("def made(): allocate()\nmade()", {"allocate": allocate})
    ctypes.CFUNCTYPE(None)(allocate)()
    thread = threading.Thread(target=recursive, args=(3,), name="worker")
    thread.start()
    thread.join()
    del thing


def reuse_of_code_addresses():
    """Code objects that live at one address, one after another."""
    for i in range(300):
        namespace = {"allocate": allocate}
        exec(compile("\n" * (i % 7) + "def made():\n" + "    pass\n" * (i % 5) + "    allocate()\n", f"made_{i % 3}.py", "exec"), namespace)
        namespace["made"]()
        del namespace


def wide_names():
    for name in ["größe", "長い名前", "𝒳"]:
        namespace = {"allocate": allocate}
        exec(compile(f"def {name}(): allocate()", f"/tmp/{name}.py", "exec"), namespace)
        [value for key, value in namespace.items() if callable(value) and value is not allocate][0]()


context = ctypes.c_void_p()
check(driver.cuInit(0))
check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
check(driver.cuCtxSetCurrent(context))
original_thread_run = threading.Thread.run


def run_with_context(self):
    check(driver.cuCtxSetCurrent(context))
    original_thread_run(self)


threading.Thread.run = run_with_context
shapes()
reuse_of_code_addresses()
wide_names()
allocate()
with open(sys.argv[2], "w", encoding="utf-8") as file:
    json.dump(expected, file)
