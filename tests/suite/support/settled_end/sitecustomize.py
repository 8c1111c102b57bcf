"""Lets PyTorch's backward threads end their work before the interpreter ends.

PyTorch 2.15.0 aborts if one of them needs the GIL after that.
"""

import atexit
import os
import sys
import threading
import time

#: Looks in a row at which no other thread may run. Between them, the GIL is free.
QUIET_LOOKS = 5
PATIENCE_SECONDS = 10


def is_any_running():
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/stat") as file:
                state = file.read().rpartition(")")[2].split()[0]
        except OSError:
            continue  # it has ended
        if state in "RD" and int(thread) != threading.get_native_id():
            return True
    return False


def wait():
    quiet, end = 0, time.monotonic() + PATIENCE_SECONDS
    while "torch" in sys.modules and quiet < QUIET_LOOKS and time.monotonic() < end:
        time.sleep(0.01)
        quiet = 0 if is_any_running() else quiet + 1


# The first one registered is the last one called.
atexit.register(wait)
