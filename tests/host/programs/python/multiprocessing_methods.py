"""multiprocessing by fork, spawn and forkserver; children use the GPU where the driver lets them.

    output: unordered
"""

import multiprocessing
import sys


def work(number):
    from observe import gpu_begin, gpu_pairs
    gpu_begin()
    gpu_pairs(100)
    return number * number


def idle(number):
    return number + 1


if __name__ == "__main__":
    from observe import gpu_begin, gpu_pairs, observe, say

    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            say(method, "before", pool.map(work, range(4)))
    gpu_begin()
    gpu_pairs(100)
    for method, function in (("fork", idle), ("spawn", work), ("forkserver", work)):
        with multiprocessing.get_context(method).Pool(2) as pool:
            say(method, "after", pool.map(function, range(4)))
    gpu_pairs(100)
    # The fork server stays, and takes its time to end.
    say("done")
    sys.stdout.flush()
