"""Ways in which a program ends. The last statement prints what PyTorch has allocated and reserved."""

import atexit
import multiprocessing
import os
import signal
import sys
import threading

import torch

KIB = 256  # floats


def print_memory():
    print(torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), flush=True)


def tensors(count, size=40):
    return [torch.zeros(size * KIB, device="cuda") for _ in range(count)]


def train():
    """Leaves losses with their graphs; its other locals are freed when it returns."""
    model = torch.nn.Linear(256, 256).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = model(torch.zeros(8, 256, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    batch = tensors(3)
    return losses[: len(batch)]


def fail(batch):
    local = tensors(2, 7)
    print_memory()
    raise ValueError(f"{len(batch)} and {len(local)}")


class Server:
    """Frees its cache in Python functions when the interpreter is finalized."""

    def __init__(self):
        self.cache = tensors(4)

    def close(self):
        while self.cache:
            self.cache.pop()

    def __del__(self):
        self.close()


def close_at_exit(server):
    server.close()
    # Also a temporary, as a handler that logs a last value would allocate.
    torch.zeros(KIB, device="cuda").sum().item()


def run_threads():
    kept = {}

    def work(number):
        batch = tensors(3)
        kept[number] = torch.zeros(len(batch) * KIB, device="cuda")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return kept


def run_child():
    Server.kept = train()
    print_memory()


if __name__ == "__main__":
    way = sys.argv[1]
    weights = tensors(5) if way != "threads" else []
    match way:
        case "main":
            train()
        case "module":
            kept = train()
            cycle = tensors(2)
            cycle.append(cycle)
            del cycle
        case "sys_exit":
            kept = train()
            print_memory()
            sys.exit(3)
        case "exception":
            fail(tensors(3))
        case "threads":
            kept = run_threads()
        case "atexit":
            kept = Server()
            atexit.register(close_at_exit, kept)
        case "finalizers":
            kept = Server()
        case "backward":
            model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)]).cuda()
            model(torch.zeros(64, 256, device="cuda")).sum().backward()
        case "child":
            context = multiprocessing.get_context("spawn")
            del weights
            child = context.Process(target=run_child)
            child.start()
            child.join()
            sys.exit(child.exitcode)
        case "killed":
            kept = train()
            print_memory()
            os.kill(os.getpid(), signal.SIGKILL)
        case "os_exit":
            kept = train()
            print_memory()
            os._exit(0)
    print_memory()
