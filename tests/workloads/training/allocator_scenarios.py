"""Typical uses of PyTorch's allocator, run on gpumemtrace's.

usage: allocator_scenarios.py SCENARIO native|global|segment [--checked FILE] [--one-thread]

With --checked, that library (checked_allocator.c) sits in between and ends the process at the first
violation. The last line is JSON: memory_stats() of each device, and the checker's counts.
"""

import argparse
import ctypes
import json
import threading

import torch
from torch import nn

from models import MODELS, batch

parser = argparse.ArgumentParser()
parser.add_argument("scenario")
parser.add_argument("mode", choices=["native", "global", "segment"])
parser.add_argument("--checked")
parser.add_argument("--one-thread", action="store_true", help="backward on the calling thread: every run then does the same in the same order")
args = parser.parse_args()


def install():
    import gpumemtrace
    from gpumemtrace import _allocator

    if not args.checked:
        return gpumemtrace.use_pluggable_allocator(args.mode)
    # The same, with the checker in between.
    path = _allocator.library_path()
    own, watch = ctypes.CDLL(path), ctypes.CDLL(args.checked)
    # libcuda is found where PyTorch's libraries look for it; load it before the checker.
    torch.cuda.device_count()
    watch.checked_use(path.encode())
    plugged = torch.cuda.memory.CUDAPluggableAllocator(args.checked, "checked_malloc", "checked_free")
    for setter, function in _allocator._HOOKS.items():
        if hasattr(plugged._allocator, setter):
            function = getattr(watch, function.replace("gpumemtrace", "checked"), None) or getattr(own, function)
            getattr(plugged._allocator, setter)(ctypes.cast(function, ctypes.c_void_p).value)
    torch.cuda.memory.change_current_allocator(plugged)
    own.gpumemtrace_configure_cache(torch.__version__.encode())
    assert own.gpumemtrace_use_cache()
    _allocator._installed = plugged
    return plugged


installed = install() if args.mode != "native" else None


def train(model="mlp", amp=False, steps=5, device="cuda"):
    network = MODELS[model]().to(device)
    optimizer = torch.optim.Adam(network.parameters())
    scaler = torch.amp.GradScaler("cuda", enabled=amp) if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler(enabled=amp)
    for _ in range(steps):
        inputs, labels = batch(network, device)
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=amp):
            loss = nn.functional.cross_entropy(network(inputs), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return network


def streams():
    """Blocks move between streams; half are freed while another stream uses them."""
    side = [torch.cuda.Stream() for _ in range(3)]
    kept = []
    for number in range(300):
        tensor = torch.empty(1000 + 977 * (number % 40) ** 2, device="cuda")
        stream = side[number % 3]
        with torch.cuda.stream(stream):
            stream.wait_stream(torch.cuda.default_stream())
            own = tensor * 2
            tensor.record_stream(stream)
        own.record_stream(torch.cuda.default_stream())
        kept.append((tensor, own))
        if len(kept) > 5:
            kept.pop(number % 5)
        if number == 250:
            torch.cuda.synchronize()
    torch.cuda.empty_cache()


def graphs():
    """Two graphs share a pool, one has its own; work between replays must not get their memory."""
    network = nn.Sequential(*MODELS["mlp"]()).cuda()
    static = torch.randn(32, 256, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            network(static).sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    made, of_graphs = [], []
    for shares in (False, True, False):
        graph = torch.cuda.CUDAGraph()
        pool = made[-1][0].pool() if shares else None
        with torch.cuda.graph(graph, pool=pool):
            hidden = network[:4](static)
            hidden.record_stream(side)
            of_graphs.append((hidden.data_ptr(), hidden.data_ptr() + hidden.nbytes))
            output = network[4:](hidden)
            del hidden
        made.append((graph, output))
    for _ in range(3):
        between = [torch.randn(4000, 100, device="cuda") for _ in range(10)]
        for tensor in between:
            begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
            assert all(end <= its_begin or its_end <= begin for its_begin, its_end in of_graphs), "a graph's memory is its own"
        for graph, _ in made:
            graph.replay()
        del between
    torch.cuda.synchronize()
    del made, graph, output, tensor
    torch.cuda.empty_cache()


def data_parallel():
    network = nn.DataParallel(MODELS["resnet18"]().cuda(), device_ids=[0, 1])
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        network(torch.randn(16, 3, 32, 32, device="cuda")).sum().backward()
        optimizer.step()


def out_of_memory():
    """Fills the device, frees some, and exceeds it once more."""
    error = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
    for _ in range(2):
        kept = []
        try:
            while True:
                kept.append(torch.empty(30 << 20, dtype=torch.uint8, device="cuda"))
        except error as refused:
            assert "CUDA out of memory. Tried to allocate 30.00 MiB" in str(refused), refused
            print("refused", flush=True)
        # Cached blocks of other sizes must be usable now.
        del kept[::2]
        kept.append(torch.empty(50 << 20, dtype=torch.uint8, device="cuda"))
        del kept
    torch.cuda.set_per_process_memory_fraction(0.25)
    torch.cuda.empty_cache()
    try:
        torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
    except error:
        print("kept to its part", flush=True)
    torch.empty(20 << 20, dtype=torch.uint8, device="cuda")


def threads():
    """Sixteen threads; each frees blocks that others allocated."""
    shared, lock = [], threading.Lock()

    def work(number):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for turn in range(200):
                tensor = torch.empty(512 * (1 + (number * 31 + turn * 17) % 900), device="cuda")
                tensor.record_stream(torch.cuda.default_stream())
                with lock:
                    shared.append(tensor)
                    given = shared.pop((number * 7 + turn) % len(shared)) if len(shared) > 20 else None
                del tensor, given

    workers = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


SCENARIOS = {
    **{name: lambda name=name: train(name) for name in MODELS},
    **{f"{name}-amp": lambda name=name: train(name, amp=True) for name in MODELS},
    "streams": streams,
    "graphs": graphs,
    "data_parallel": data_parallel,
    "out_of_memory": out_of_memory,
    "threads": threads,
}
torch.backends.cudnn.enabled = False
torch.autograd.set_multithreading_enabled(not args.one_thread)
SCENARIOS[args.scenario]()
torch.cuda.synchronize()

if args.mode == "native":
    stats = [torch.cuda.memory_stats(device) for device in range(torch.cuda.device_count())]
else:
    import gpumemtrace

    stats = [gpumemtrace.memory_stats(device) for device in range(torch.cuda.device_count())]
counts = (ctypes.c_uint64 * 3)()
if args.checked:
    ctypes.CDLL(args.checked).checked_counts(counts)
print(json.dumps({"stats": stats, "handed_out": counts[0], "waited": counts[1], "reused": counts[2]}))
