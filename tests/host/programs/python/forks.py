"""os.fork with threads, os.posix_spawn, subprocess with all its options, and os._exit in children."""

import os
import subprocess
import sys
import threading
import warnings

from observe import gpu_begin, gpu_pairs, gpu_thread, observe, say

warnings.simplefilter("ignore")
stop = threading.Event()


def work():
    gpu_thread()
    while not stop.is_set():
        gpu_pairs(10)


gpu_begin()
thread = threading.Thread(target=work)
thread.start()
for number in range(6):
    child = os.fork()
    if child == 0:
        os._exit(number)
    say("fork", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
child = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 4"], os.environ)
say("posix_spawn", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
done = subprocess.run([sys.executable, "-S", "-c", "import os; print(sorted(os.listdir('/proc/self/fd'))[:3])"], capture_output=True,
                      text=True, close_fds=True, start_new_session=True, preexec_fn=lambda: None)
say(done.stdout.strip(), done.returncode)
stop.set()
thread.join()
observe("end")
