"""Python stacks of many kinds, each with the stack that CPython sees there. Needs no PyTorch.

usage: python_stacks.py DRIVER OUTPUT random SEED        a random program
                                      dropped COUNT      functions compiled, called once and dropped
                                      parallel COUNT     threads that run the same functions at once
                                      sub                allocations in a sub-interpreter
end [registered]   allocations at shutdown: finalizers or atexit

Each allocation has a unique size, which identifies its event. OUTPUT gets one Python literal per
allocation: [size, [[file, line, function], ...]], innermost first. `dropped` writes none: names
follow from the number.
"""

import asyncio
import atexit
import contextlib
import ctypes
import functools
import gc
import os
import random
import re
import signal
import sys
import threading
import weakref

try:
    from greenlet import greenlet
except ImportError:
    greenlet = None

driver = ctypes.CDLL(sys.argv[1])
output = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
size = 0


def check(result):
    if result:
        raise RuntimeError(f"driver error {result}")


# Defaults bind what it needs: globals are gone when the interpreter ends.
def allocate(*_, sys=sys, ctypes=ctypes, os=os, repr=repr, output=output, driver=driver, file=__file__, state=[0, 512]):
    state[0] += state[1]
    size = state[0]
    frame = sys._getframe()
    walked, stack = frame.f_back, []
    while walked is not None:
        code = walked.f_code
        stack.append([code.co_filename, walked.f_lineno, getattr(code, "co_qualname", code.co_name)])
        walked = walked.f_back
    pointer = ctypes.c_uint64()
    stack.insert(0, [file, frame.f_lineno + 2, "allocate"])
    os.write(output, (repr([size, stack]) + "\n").encode())
    driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size))


def in_thread(function):
    def run():
        check(driver.cuCtxSetCurrent(context))
        function()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def drive(coroutine):
    try:
        while True:
            coroutine.send(None)
    except StopIteration as stop:
        return stop.value


def in_loop(make):
    in_thread(lambda: asyncio.run(make()))


def signalled(function):
    if threading.current_thread() is not threading.main_thread() or (greenlet and greenlet.getcurrent().parent):
        return function()
    before = signal.signal(signal.SIGUSR1, lambda *_: function())
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        # CPython runs the handler within a few bytecodes.
        for _ in range(100):
            pass
    finally:
        signal.signal(signal.SIGUSR1, before)


def profiled(function):
    def profile(_frame, event, _argument):
        if event == "call":
            sys.setprofile(None)
            function()

    sys.setprofile(profile)
    (lambda: None)()
    sys.setprofile(None)


def collected(function):
    class Cycle:
        def __init__(self):
            self.self = self

        def __del__(self):
            function()

    Cycle()
    gc.collect()


def forgotten(function):
    class Target:
        pass

    target = Target()
    reference = weakref.ref(target, lambda _: function())
    del target
    return reference


def switched(function):
    if greenlet is None:
        return function()

    def first():
        second_one.switch()
        function()

    def second():
        function()
        first_one.switch()
        function()

    first_one = greenlet(first)
    second_one = greenlet(second, first_one)
    first_one.switch()
    if second_one:
        second_one.switch()


#: Definitions (N is a number, INNER an expression that continues the chain), and their use.
SHAPES = [
    ("def fN(x=1):\n    y = x\n    return INNER", "fN()"),
    ("def fN():\n    return (\n        1,\n        INNER,\n        [2,\n         INNER],\n    )", "fN()"),
    ("def fN(d=DEPTH):\n    if d:\n        return fN(d - 1)\n\n\n    return INNER", "fN()"),
    ("def fN():\n    yield 1\n    yield INNER\n    INNER", "list(fN())"),
    ("def gN():\n    yield INNER\ndef fN():\n    x = yield from gN()\n    return x", "list(fN())"),
    ("def fN():\n    try:\n        yield\n    finally:\n        INNER", "(lambda g: (next(g), g.close()))(fN())"),
    ("def fN():\n    try:\n        yield\n    except KeyError:\n        yield INNER",
     "(lambda g: (next(g), g.throw(KeyError())))(fN())"),
    ("", "list(INNER for _ in range(2))"),
    ("", "[INNER for _ in range(2)]"),
    ("", "{x: INNER for x in range(2)}"),
    ("", "[[\nINNER\nfor _ in range(1)]\nfor x in range(2)]"),
    ("", "(lambda *a: INNER)()"),
    ("", "(INNER if GLOBAL else 1)"),
    ("class CN:\n    def method(self):\n        return INNER", "CN().method()"),
    ("class CN:\n    def __init__(self):\n        INNER", "CN()"),
    ("class CN:\n    def __new__(cls):\n        INNER\n        return object.__new__(cls)", "CN()"),
    ("def fN():\n    class Inner:\n        value = INNER\n    return Inner", "fN()"),
    ("class CN:\n    @property\n    def value(self):\n        return INNER", "CN().value"),
    ("class CN:\n    def __getattr__(self, name):\n        return INNER", "CN().anything"),
    ("class CN:\n    def __lt__(self, other):\n        INNER\n        return True", "sorted([CN(), CN()])"),
    ("class CN:\n    def __iter__(self):\n        return self\n    def __next__(self):\n        INNER\n        raise StopIteration",
     "list(CN())"),
    ("class CN:\n    def __del__(self):\n        INNER", "[CN()].clear()"),
    ("class CN:\n    def __enter__(self):\n        return INNER\n    def __exit__(self, *_):\n        INNER\n"
     "def fN():\n    with CN() as x:\n        y = x\n    return y", "fN()"),
    ("class MN(type):\n    def __call__(cls):\n        INNER\n        return super().__call__()\nclass CN(metaclass=MN):\n    pass",
     "CN()"),
    ("class BN:\n    def m(self):\n        return INNER\nclass CN(BN):\n    def m(self):\n        return super().m()", "CN().m()"),
    ("def dN(g):\n    def wrapper(*a, **k):\n        return g(*a, **k)\n    return wrapper\n@dN\ndef fN():\n    return INNER", "fN()"),
    ("@functools.lru_cache(None)\ndef fN(*a):\n    return INNER", "fN(len([]))"),
    ("@contextlib.contextmanager\ndef cN():\n    INNER\n    yield\n    INNER\ndef fN():\n    with cN():\n        pass", "fN()"),
    ("", "sorted([2, 1], key=lambda x: (INNER, x)[1])"),
    ("", "functools.reduce(lambda a, b: INNER, [1, 2, 3])"),
    ("", "list(map(lambda x: INNER, range(2)))"),
    ("", "functools.partial(lambda a: INNER, 1)()"),
    ("def fN():\n    exec(compile('x = 1\\n\\nINNER', '<exec N>', 'exec'), globals())", "fN()"),
    ("", "eval('INNER')"),
    ("", "ctypes.CFUNCTYPE(None)(lambda: (INNER, None)[1])()"),
    ("def fN():\n    try:\n        raise ValueError\n    except ValueError:\n        return INNER\n    finally:\n        INNER", "fN()"),
    ("def fN():\n    try:\n        1 / 0\n    except ZeroDivisionError as error:\n        e = error\n        try:\n            INNER\n"
     "            raise KeyError from e\n        except KeyError:\n            INNER", "fN()"),
    ("def fN():\n    for i in range(2):\n        while True:\n            INNER\n            if i:\n                break\n            i += 1", "fN()"),
    ("def fN(a=1, *, b=2, **c):\n    a = b; INNER; b = a\n    assert [INNER], (\n        'message')\n    return b", "fN()"),
    ("async def fN():\n    return INNER", "drive(fN())"),
    ("async def gN():\n    await asyncio.sleep(0)\n    return INNER\nasync def fN():\n    await asyncio.gather(gN(), gN())",
     "in_loop(fN)"),
    ("async def gN():\n    yield INNER\n    yield 2\nasync def fN():\n    async for x in gN():\n        INNER\n    return [y async for y in gN()]",
     "drive(fN())"),
    ("class CN:\n    async def __aenter__(self):\n        INNER\n    async def __aexit__(self, *_):\n        INNER\nasync def fN():\n"
     "    async with CN():\n        pass", "drive(fN())"),
    ("", "in_thread(lambda: INNER)"),
    ("", "signalled(lambda: INNER)"),
    ("", "profiled(lambda: INNER)"),
    ("", "collected(lambda: INNER)"),
    ("", "forgotten(lambda: INNER)"),
    ("", "switched(lambda: INNER)"),
]
#: Deeper than the recorder's limit.
DEEP = "def deep(d=300):\n    return deep(d - 1) if d else allocate()\ndeep()"


def program(maker, lines, depth, number):
    """Adds definitions for a call chain that ends in `allocate`; returns its first expression."""
    expression = "allocate()"
    for level in range(depth):
        definition, use = maker.choice(SHAPES)

        def fill(text, level=level):
            text = text.replace("DEPTH", str(maker.randrange(1, 20)))
            return re.sub(r"\b([fgcdCMB]|exec )N\b", rf"\g<1>{number}_{level}", text)

        if "'INNER'" in use or "nINNER'" in definition:
            definition, use = definition.replace("INNER'", "INSIDE'"), use.replace("INNER'", "INSIDE'")
        filled = []
        for text in (definition, use):
            text = fill(text.replace("INNER", "\0").replace("INSIDE", "\1"))
            quoted = expression.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
            filled.append(text.replace("\0", expression).replace("\1", quoted))
        if filled[0]:
            lines.extend([""] * maker.randrange(3) + [filled[0]])
        expression = filled[1]
        if len(expression) > 150:
            lines.append(f"def h{number}_{level}():\n    return {expression}")
            expression = f"h{number}_{level}()"
    return expression


def at_random(seed):
    maker = random.Random(seed)
    for number in range(80):
        lines = []
        call = program(maker, lines, maker.randrange(1, 5), number)
        # Lines without code make long deltas in the line table.
        lines.insert(0, "\n" * maker.choice([0, 0, 1, 130, 400]))
        lines.append(call)
        name = f"random_{seed}_{number}{maker.choice(['', 'é', '長', '𝒳'])}.py"
        exec(compile("\n".join(lines), name, "exec"), dict(globals()))
    exec(compile(DEEP, "deep.py", "exec"), dict(globals()))


def dropped(count):
    """Calls and lines follow from the number: see test_python_stacks.py."""
    call, pointer = driver.cuMemAlloc_v2, ctypes.c_uint64()
    where = ctypes.byref(pointer)
    for i in range(count):
        kind, blank = i // 1000 % 4, i % 3 if i // 500 % 2 else 0
        size = ctypes.c_size_t(512 * (i + 1))
        name, file = [(f"f{i:06}", "made.py"), ("f", f"<made {i:06}>"), (f"f{i:06}", f"<made {i:06}>"), ("inner", "made.py")][kind]
        if kind == 3:
            source = f"def a_function_{i:06}_of_many():\n    def inner():\n        call(where, size)\n    inner()\na_function_{i:06}_of_many()"
        else:
            source = f"def {name}():\n    call(where, size)\n{name}()"
        exec(compile("\n" * blank + source, file, "exec"), {"call": call, "where": where, "size": size})
        driver.cuMemFree_v2(pointer)


def in_sub_interpreter():
    try:
        import _interpreters as interpreters
    except ImportError:
        import _xxsubinterpreters as interpreters
    # The sub-interpreter shares the GIL: ctypes cannot be imported into others.
    if sys.version_info >= (3, 13):
        created = interpreters.create("legacy")
    elif sys.version_info >= (3, 12):
        created = interpreters.create(isolated=False)
    else:
        created = interpreters.create(isolated=False) if sys.version_info >= (3, 10) else interpreters.create()
    allocate()
    inside = (
        "import ctypes, sys, os\n"
        f"driver = ctypes.CDLL({sys.argv[1]!r})\n"
        "def innermost():\n"
        "    pointer = ctypes.c_uint64()\n"
        "    frame, stack = sys._getframe(), []\n"
        "    line = frame.f_lineno + 5\n"
        "    while frame is not None:\n"
        "        stack.append([frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name])\n"
        "        frame = frame.f_back\n"
        "    stack[0][1] = line\n"
        "    driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 20))\n"
        f"    os.write({output}, (repr([1 << 20, stack]) + '\\n').encode())\n"
        "innermost()\n"
    )
    frame = sys._getframe()
    # The caller's stack, in case the trace has that one.
    stack = [[__file__, frame.f_lineno + 6, "in_sub_interpreter"]]
    walked = frame.f_back
    while walked is not None:
        stack.append([walked.f_code.co_filename, walked.f_lineno, walked.f_code.co_name])
        walked = walked.f_back
    os.write(output, (repr([0, stack]) + "\n").encode())
    interpreters.run_string(created, inside)
    interpreters.destroy(created)
    allocate()


def parallel(count, threads=4):
    """In free-threaded builds each thread runs its own copy of the bytecode."""
    ways = [lambda inner: inner(), lambda inner: list(map(lambda _: inner(), [0])), lambda inner: [inner() for _ in "1"],
            lambda inner: next(inner() for _ in "1"), lambda inner: (lambda: (lambda: inner())())()]
    start = threading.Barrier(threads)

    def work(number):
        check(driver.cuCtxSetCurrent(context))
        choose = random.Random(number)
        state = [512 * number, 512 * threads]

        def descend(depth):
            if depth == 0:
                return allocate(state=state)
            # The same function is called from several lines; the line is part of the stack.
            if choose.random() < 0.5:
                return choose.choice(ways)(lambda: descend(depth - 1))
            return choose.choice(ways)(lambda: descend(depth - 1))

        start.wait()
        for _ in range(count):
            descend(choose.randrange(1, 12))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


class Last:
    def __del__(self, allocate=allocate):
        allocate()


def at_the_end():
    allocate()
    if sys.argv[4:] == ["registered"]:
        # The registered function keeps this module alive, so nothing in it is deleted.
        atexit.register(lambda: allocate())
    else:
        random.kept_to_the_end = Last()
        globals()["kept"] = Last()

    def forever():
        pointer = ctypes.c_uint64()
        driver.cuCtxSetCurrent(context)
        while True:
            driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(511))
            driver.cuMemFree_v2(pointer)

    for _ in range(2):
        threading.Thread(target=forever, daemon=True).start()


GLOBAL = True
context = ctypes.c_void_p()
check(driver.cuInit(0))
check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
check(driver.cuCtxSetCurrent(context))
# Garbage collection must depend on the program only.
gc.disable()
if sys.argv[3] == "random":
    at_random(int(sys.argv[4]))
elif sys.argv[3] == "dropped":
    dropped(int(sys.argv[4]))
elif sys.argv[3] == "parallel":
    parallel(int(sys.argv[4]))
elif sys.argv[3] == "sub":
    in_sub_interpreter()
else:
    at_the_end()
