"""Threads allocate; daemon threads still do so while the interpreter finalises."""

import threading
import time

from observe import gpu_begin, gpu_pairs, gpu_thread, observe, say


def work():
    gpu_thread()
    for _ in range(50):
        gpu_pairs(10)


def for_ever():
    gpu_thread()
    while True:
        gpu_pairs(1)


gpu_begin()
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for _ in range(3):
    threading.Thread(target=for_ever, daemon=True).start()
time.sleep(0.05)
observe("end")
say("done")
