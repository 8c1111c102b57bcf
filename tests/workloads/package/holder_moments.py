"""Keeps a tensor at every step in a place that is gone when the program ends.

usage: holder_moments.py WHERE [--scans N] [--seconds N] [--steps N]

  main, method, closure, generator, coroutine   where the tensors are kept
  worker      in a variable of a thread that the main thread waits for
  busy        in a list, with timers, signals, child processes, threads and asyncio; prints what it
              observes, without numbers that depend on time
  forever     in a list, until the program is killed
  deque, queue, cache   in a global container that has a limit

--scans N     runs until so many scans have ended
--seconds N   does not wait longer for them
--steps N     the least number of steps
"""

import argparse
import asyncio
import collections
import functools
import gc
import os
import queue
import signal
import subprocess
import sys
import threading
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("where")
parser.add_argument("--scans", type=int, default=0)
parser.add_argument("--seconds", type=float, default=60)
parser.add_argument("--steps", type=int, default=12)
args = parser.parse_args()
started = time.monotonic()
triggers = sys.modules.get("_gpumemtrace_holders.triggers")


def count_scans():
    intervals = getattr(triggers, "_intervals", None)
    return 0 if intervals is None else intervals.count


def mark_step():
    import ctypes

    step = getattr(ctypes.CDLL(None), "gpumemtrace_step", None)
    if step is not None:
        step()


def new():
    return torch.zeros(1 << 18, device="cuda")


def steps():
    """The numbers of the steps."""
    step = 0
    while step < args.steps or (count_scans() < args.scans and time.monotonic() < started + args.seconds):
        mark_step()
        yield step
        step += 1
        if args.scans:
            time.sleep(0.005)
    mark_step()


def keep_in_main():
    kept = []
    for _ in steps():
        kept.append(new())


class Trainer:
    def __init__(self):
        self.history = []

    def fit(self):
        for _ in steps():
            self.history.append(new())


def keep_in_method():
    trainer = Trainer()
    trainer.fit()


def keep_in_closure():
    def recorder():
        memory = []

        def remember(tensor):
            memory.append(tensor)

        return remember

    remember = recorder()
    for _ in steps():
        remember(new())


def keep_in_generator():
    def window():
        seen = []
        while True:
            seen.append((yield len(seen)))

    running = window()
    next(running)
    for _ in steps():
        running.send(new())


async def keep_in_coroutine():
    pending = []
    for _ in steps():
        pending.append(new())
        await asyncio.sleep(0)


def keep_in_worker():
    def work():
        results = []
        for _ in steps():
            results.append(new())

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()


class Interrupted(Exception):
    pass


def keep_while_busy():
    raised, caught, children = [], [], []

    def on_alarm(number, frame):
        raised.append(number)
        raise Interrupted

    def on_child(number, frame):
        children.append(number)

    kept = []
    torch.zeros(1, device="cuda")
    signal.signal(signal.SIGALRM, on_alarm)
    signal.signal(signal.SIGCHLD, on_child)
    for step in steps():
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.003)
            kept.append(new())
            for _ in range(20_000):
                pass
            time.sleep(0.02)
        except Interrupted:
            caught.append(step)
    signal.setitimer(signal.ITIMER_REAL, 0)
    print("each exception of a handler reached the program:", len(raised) == len(caught) > 0)
    print("signals of children:", children)
    child = subprocess.Popen([sys.executable, "-S", "-c", "pass"])
    print("own child:", os.wait()[0] == child.pid, "others:", end=" ")
    try:
        print(os.wait())
    except ChildProcessError:
        print("none")
    print("threads:", [thread.name for thread in threading.enumerate()])
    print("handlers:", signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGALRM) is on_alarm)
    print("tracing:", sys.gettrace(), sys.getprofile(), "collector:", gc.isenabled(), gc.get_threshold())


async def tick():
    ticks = 0
    for _ in range(5):
        await asyncio.sleep(0.001)
        ticks += 1
    return ticks


deque = collections.deque(maxlen=1000)
waiting = queue.Queue(maxsize=500)


@functools.lru_cache(maxsize=77)
def cached(step):
    return new()


def keep_limited(keep):
    for step in steps():
        keep(step)


def main():
    if args.where == "busy":
        keep_while_busy()
        print("ticks:", asyncio.run(tick()))
        sys.exit(3)
    places = {
        "forever": keep_in_main,
        "method": keep_in_method,
        "closure": keep_in_closure,
        "generator": keep_in_generator,
        "worker": keep_in_worker,
        "deque": lambda: keep_limited(lambda step: deque.append(new())),
        "queue": lambda: keep_limited(lambda step: waiting.put(new())),
        "cache": lambda: keep_limited(cached),
    }
    places[args.where]()


if args.where == "coroutine":
    asyncio.run(keep_in_coroutine())
elif args.where == "main":
    # The outermost function has the variable: `keep_in_main()` is this program's `main()`.
    keep_in_main()
else:
    main()
