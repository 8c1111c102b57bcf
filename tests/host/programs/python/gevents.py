"""gevent with everything patched: greenlets, its hub's threads and subprocesses beside GPU calls.

    needs: module gevent
"""

from gevent import monkey

monkey.patch_all()

import subprocess  # noqa: E402
import threading  # noqa: E402

import gevent  # noqa: E402
from gevent.threadpool import ThreadPool  # noqa: E402

from observe import gpu_begin, gpu_pairs, gpu_thread, observe, say  # noqa: E402


def work(number):
    for _ in range(20):
        gpu_pairs(2)
        gevent.sleep(0)
    return number


def in_pool():
    gpu_thread()
    gpu_pairs(50)


gpu_begin()
jobs = [gevent.spawn(work, number) for number in range(50)]
gevent.joinall(jobs)
say("sum", sum(job.value for job in jobs))
pool = ThreadPool(3)
for _ in range(9):
    pool.spawn(in_pool)
pool.join()
say(subprocess.run(["sh", "-c", "exit 3"]).returncode)
thread = threading.Thread(target=gpu_pairs, args=(10,))
thread.start()
thread.join()
observe("end")
