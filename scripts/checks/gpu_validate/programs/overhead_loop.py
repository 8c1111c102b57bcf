"""Times pairs of an allocation and a free, and counts what the system did meanwhile."""

from witness import *  # noqa: F403
import resource
import torch
pairs = int(sys.argv[1])
empty, device = torch.empty, torch.device("cuda")

def loop(number):
    for _ in range(number):
        x = empty(1024, device=device)
        del x

def deeper(number, frames):
    return loop(number) if frames == 0 else deeper(number, frames - 1)

def migrations():
    try:
        with open("/proc/self/sched") as file:
            return next((int(line.split(":")[1]) for line in file if line.startswith("se.nr_migrations")), 0)
    except OSError:
        return 0

keep = empty(1, device=device)
deeper(2000, 30)
before, moved, begin = resource.getrusage(resource.RUSAGE_SELF), migrations(), time.perf_counter_ns()
deeper(pairs, 30)
ns, after = (time.perf_counter_ns() - begin) / pairs, resource.getrusage(resource.RUSAGE_SELF)
emit(ns=ns, faults=after.ru_minflt - before.ru_minflt, migrations=migrations() - moved,
     switches=after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw)
exit_now()
