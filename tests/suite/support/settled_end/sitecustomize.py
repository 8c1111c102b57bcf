"""Gives PyTorch's backward threads time to end their work before the interpreter ends.

PyTorch 2.15.0 aborts if one of them needs the GIL after that.
"""

import atexit
import sys
import time


def wait():
    if "torch" in sys.modules:
        time.sleep(0.2)


# The first one registered is the last one called.
atexit.register(wait)
