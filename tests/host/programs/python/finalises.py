"""Exit handlers, finalizers, weak references and module globals free GPU memory at the end."""

import atexit
import sys
import threading
import weakref

from observe import gpu_alloc, gpu_begin, gpu_free, gpu_pairs, observe, say


class Buffer:
    def __init__(self, name):
        self.name, self.address = name, gpu_alloc(4096)

    def __del__(self, free=gpu_free, say=say):
        free(self.address)
        say("freed", self.name)


gpu_begin()
kept = Buffer("a global")
local = threading.local()
local.buffer = Buffer("of a thread")
cycle = [Buffer("in a cycle")]
cycle.append(cycle)
weakref.finalize(kept, say, "finalizer")
atexit.register(gpu_pairs, 10)
atexit.register(say, "exit handler")
observe("end")
sys.exit("a message")
