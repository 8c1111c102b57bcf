"""asyncio runs children, timers and an executor beside GPU calls.

    output: unordered
"""

import asyncio
import signal
import sys

from observe import gpu_begin, gpu_pairs, gpu_thread, observe, say


def work():
    gpu_thread()
    gpu_pairs(50)


async def child(number):
    process = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", f"print('child'); raise SystemExit({number})",
                                                   stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    say(output.decode().strip(), process.returncode)


async def main():
    loop = asyncio.get_running_loop()
    caught = []
    loop.add_signal_handler(signal.SIGUSR1, lambda: caught.append(1))
    signal.raise_signal(signal.SIGUSR1)
    await asyncio.gather(*map(child, range(3)), *(loop.run_in_executor(None, work) for _ in range(8)))
    say("signals", len(caught))


gpu_begin()
gpu_pairs(100)
asyncio.run(main())
gpu_pairs(100)
observe("end")
