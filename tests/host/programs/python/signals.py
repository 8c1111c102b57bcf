"""Python's handlers, wakeup descriptors, faulthandler and KeyboardInterrupt beside GPU calls."""

import faulthandler
import os
import signal

from observe import gpu_begin, gpu_pairs, observe, say

caught = []
reader, writer = os.pipe()
os.set_blocking(writer, False)


def handler(number, frame):
    gpu_pairs(2)
    caught.append(number)


gpu_begin()
faulthandler.enable()
signal.set_wakeup_fd(writer)
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
while len(caught) < 50:
    gpu_pairs(20)
signal.setitimer(signal.ITIMER_REAL, 0)
signal.set_wakeup_fd(-1)
say("woken", set(os.read(reader, 10000)) == {signal.SIGALRM})
observe("handlers")
try:
    os.kill(os.getpid(), signal.SIGINT)
    gpu_pairs(1)
except KeyboardInterrupt:
    say("interrupted")
gpu_pairs(10)
signal.raise_signal(signal.SIGTERM)
