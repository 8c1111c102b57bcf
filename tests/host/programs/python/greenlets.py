"""Greenlets switch stacks between GPU calls, and in threads.

    needs: module greenlet
"""

import threading

import greenlet

from observe import gpu_begin, gpu_pairs, gpu_thread, observe, say


def nested(depth, other):
    gpu_pairs(1)
    if depth:
        return nested(depth - 1, other)
    return other.switch()


def body():
    main = greenlet.getcurrent().parent
    total = 0
    for depth in range(100):
        total += nested(depth % 20, main) or 0
    return total


def work():
    gpu_thread()
    switched = 0
    pair = [greenlet.greenlet(body) for _ in range(10)]
    for _ in range(101):
        for one in pair:
            if not one.dead:
                one.switch()
                switched += 1
    say("switched", switched)


gpu_begin()
work()
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
gpu_pairs(100)
observe("end")
