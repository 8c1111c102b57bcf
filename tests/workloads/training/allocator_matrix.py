"""The rows of the coverage matrix: each exercises one use of PyTorch's allocator, with its history
on.

At the end the history (`_snapshot()['device_traces']`, the oracle) goes to --history as JSON: per
device, a list of [action, address, size, stream, pool]. The pool is null where PyTorch does not
report it. Without a history (cudaMallocAsync, no caching) the lists are empty.
"""

import argparse
import json
import os
import threading

import torch
from torch import nn

from models import MODELS, batch

#: OutOfMemoryError had several names; without the cache the driver call's error is raised.
OutOfMemory = RuntimeError
NATIVE = torch.cuda.get_allocator_backend() == "native"
CACHING = "PYTORCH_NO_CUDA_MEMORY_CACHING" not in os.environ


def train(name, device="cuda", steps=3):
    model = MODELS[name]().to(device)
    optimizer = torch.optim.Adam(model.parameters())
    criterion = nn.CrossEntropyLoss()
    for _ in range(steps):
        inputs, labels = batch(model, torch.device(device))
        optimizer.zero_grad()
        criterion(model(inputs), labels).backward()
        optimizer.step()


def pools():
    """Blocks in private pools and on side streams; frees that must wait for another stream."""
    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    kept = []
    # MemPools need the native allocator's cache; they exist since torch 2.5.
    pool = torch.cuda.MemPool() if NATIVE and CACHING and hasattr(torch.cuda, "MemPool") else None
    for round in range(40):
        with torch.cuda.stream(side):
            on_side = torch.empty(1000 + 77 * round, device="cuda")
        on_side.record_stream(torch.cuda.current_stream())
        on_main = torch.empty(300_000 + round, device="cuda")
        on_main.record_stream(side)
        on_main.record_stream(other)
        if pool is not None:
            with torch.cuda.use_mem_pool(pool):
                kept.append(torch.empty(5000 * round + 1, device="cuda"))
        del on_side, on_main
        if round % 10 == 9:
            kept.clear()
            torch.cuda.synchronize()
    kept.clear()
    del pool
    torch.cuda.empty_cache()


def graph():
    """Two captures share a private pool; they are replayed and dropped, their memory freed."""
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).cuda()
    static = torch.empty(64, 256, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(static).sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    model.zero_grad(set_to_none=True)
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        out = model(static)
        loss = out.sum()
        loss.backward()
    with torch.cuda.graph(second, pool=first.pool()):
        again = static * 2
    for _ in range(3):
        static.zero_()
        first.replay()
        second.replay()
        torch.empty(100_000, device="cuda")
    del out, loss, again
    model.zero_grad(set_to_none=True)
    del first, second
    torch.cuda.empty_cache()


def oom():
    """Out of memory, twice; the program continues."""
    for _ in range(2):
        kept = []
        try:
            while True:
                kept.append(torch.empty(5_000_001, device="cuda"))
        except OutOfMemory:
            kept.clear()
        try:
            torch.empty(1 << 40, device="cuda")
        except OutOfMemory:
            pass
    train("mlp", steps=2)


def devices():
    """Two devices, one thread each, and a copy between them.

    The first block is allocated before the threads start. If two threads allocate their first
    blocks at once, the tracker is attached late to the second device, and its first entries are not
    delivered.
    """
    torch.empty(1, device="cuda:0")
    threads = [threading.Thread(target=train, args=("mlp", f"cuda:{index}")) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    there = torch.empty(12_345, device="cuda:0").to("cuda:1")
    del there


def pinned():
    """Pinned memory: PyTorch's cache of it, and copies that keep it in use."""
    for round in range(20):
        host = torch.empty(10_000 * (1 + round % 4)).pin_memory()
        there = host.to("cuda", non_blocking=True)
        del host, there
    torch.cuda.synchronize()


def graph_row():
    """Without the cache each block is a driver call, so CUDA refuses and the capture fails."""
    try:
        graph()
    except RuntimeError:
        if CACHING:
            raise


ROWS = {
    "mlp": lambda: train("mlp"),
    "resnet18": lambda: train("resnet18"),
    "transformer": lambda: train("transformer"),
    "pools": pools,
    "graph": graph_row,
    "oom": oom,
    "devices": devices,
    "pinned": pinned,
}


def history():
    traces = torch.cuda.memory._snapshot()["device_traces"]

    def row(entry):
        where = entry.get("addr", entry.get("device_free"))
        return [entry["action"], where, entry["size"], entry["stream"], entry.get("pool_id")]

    return [[row(entry) for entry in trace] for trace in traces]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("row", choices=ROWS)
    parser.add_argument("--history", required=True)
    args = parser.parse_args()
    torch.cuda.init()
    if NATIVE and CACHING:
        torch.cuda.memory._record_memory_history("all", context=None, max_entries=1_000_000)
    ROWS[args.row]()
    torch.cuda.synchronize()
    traces = history() if NATIVE and CACHING else [[] for _ in range(torch.cuda.device_count())]
    with open(args.history, "w", encoding="utf-8") as file:
        json.dump(traces, file)
