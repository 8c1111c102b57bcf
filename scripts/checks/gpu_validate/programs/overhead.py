"""Times an allocation loop and training steps: bare, traced, or with PyTorch's history. The way
`loop` has no steps. The loop also counts what the system did meanwhile."""

from witness import *  # noqa: F403
import resource
import torch
way, count, pairs, large = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "large"
if way == "history":
    torch.cuda.memory._record_memory_history("all", stacks="python", context="all", max_entries=100_000)
empty, device = torch.empty, torch.device("cuda")

def loop(number):
    for _ in range(number):
        x = empty(1024, device=device)
        del x

def deeper(number, frames):
    return loop(number) if frames == 0 else deeper(number, frames - 1)

def counts():
    """Page faults, context switches and migrations so far; None for what the system hides."""
    usage, migrations = resource.getrusage(resource.RUSAGE_SELF), None
    try:
        with open("/proc/self/sched") as file:
            migrations = next((int(line.split(":")[1]) for line in file if line.startswith("se.nr_migrations")), None)
    except OSError:
        pass
    return {"faults": usage.ru_minflt, "switches": usage.ru_nvcsw + usage.ru_nivcsw, "migrations": migrations}

keep = empty(1, device=device)
deeper(2000, 30)
before, best = counts(), 1e18
for _ in range(5):
    begin = time.perf_counter_ns()
    deeper(pairs // 5, 30)
    best = min(best, (time.perf_counter_ns() - begin) / (pairs // 5))
after = counts()
more = {name: None if before[name] is None else after[name] - before[name] for name in before}
emit(what="alloc+free, 30 frames deep", ns=best, **more)
for name in () if way == "loop" else ("resnet18", "transformer"):
    running, times = steps(name, large=large), []
    for number in range(5 + count):
        torch.cuda.synchronize()
        begin = time.perf_counter_ns()
        next(running)
        torch.cuda.synchronize()
        times.append(time.perf_counter_ns() - begin)
    emit(what="step of " + name, ns=sorted(times[5:])[count // 2])
    running.close()
    del running
    gc.collect()
    torch.cuda.empty_cache()
exit_now()
