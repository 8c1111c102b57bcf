"""What record.py runs: generators that yield in the middle, and at the end what must stay alive."""

import torch
from torch import nn

MIB = 1 << 20


def network(device="cuda", width=256):
    layers = [layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, 10)).to(device)


def train(steps, device="cuda", model=None, batch=32, optimizer=None):
    model = model or network(device)
    optimizer = optimizer or torch.optim.Adam(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        inputs = torch.empty(batch + 7 * step, 256, device=device)
        model(inputs).sum().backward()
        optimizer.step()
    return model, optimizer


def training():
    """A model, its optimizer, and a list that keeps one activation of each step."""
    model, optimizer = train(2)
    kept = []
    yield
    for step in range(6):
        train(1, model=model, optimizer=optimizer, batch=64 + step)
        kept.append(model[:3](torch.empty(100, 256, device="cuda")).sum())
    yield model, optimizer, kept


def fragments():
    """Blocks of all sizes with holes between them; the cache is emptied once."""
    sizes = [700, 512, 300_000, 1_048_576, 1_500_000, 9_000_000, 12_345_678, 30_000_000]
    kept = [torch.empty(size + 511 * turn, dtype=torch.uint8, device="cuda") for turn in range(6) for size in sizes]
    yield
    del kept[::3]
    torch.cuda.empty_cache()
    for turn in range(8):
        kept += [torch.empty(size // 2 + 1000 * turn, dtype=torch.uint8, device="cuda") for size in sizes[turn % 3 :]]
        del kept[turn :: 4]
    yield kept


def pools():
    """A CUDA graph's private pool and, if this PyTorch has it, a MemPool."""
    model = network()
    static = torch.empty(64, 256, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        model(static).sum().backward()
    torch.cuda.synchronize()
    model.zero_grad(set_to_none=True)
    yield
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hidden = model[:4](static)
        out = model[4:](hidden)
    del hidden
    graph.replay()
    kept = []
    pool = torch.cuda.MemPool() if hasattr(torch.cuda, "MemPool") else None
    try:
        with torch.cuda.use_mem_pool(pool):
            kept += [torch.empty(5_000_000 + turn, dtype=torch.uint8, device="cuda") for turn in range(8)]
        del kept[::2]
    except (AttributeError, RuntimeError):
        # Torch 2.4 and older have no MemPool; 2.7 has none with expandable segments.
        pool = None
    yield graph, out, pool, kept


def pending():
    """Blocks of two streams, freed while another stream uses them; run with delayed events."""
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    kept = []
    for turn in range(24):
        if turn == 12:
            yield
        with torch.cuda.stream(side):
            mine = torch.empty(400_000 * (1 + turn % 5), device="cuda")
            mine.record_stream(main)
        other = torch.empty(3_000 * (1 + turn), device="cuda")
        other.record_stream(side)
        if turn % 4 == 0:
            kept += [mine, other]
        del mine, other
    yield kept


def oom():
    """Runs out of memory twice, and goes on."""
    kept = [torch.empty(20 * MIB, dtype=torch.uint8, device="cuda") for _ in range(4)]
    yield
    for _ in range(2):
        more = []
        try:
            while True:
                more.append(torch.empty(30 * MIB - 5, dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError:
            more.clear()
    model, optimizer = train(2)
    yield kept, model, optimizer


def devices():
    """Two devices, and a copy from one to the other."""
    first = train(2, "cuda:0")
    yield
    second = train(3, "cuda:1", batch=100)
    there = torch.empty(12_345, device="cuda:0").to("cuda:1")
    yield first, second, there


def annotations():
    """Ranges of record_function, and where this PyTorch has them, texts of the user."""
    model, optimizer = train(1)
    memory = torch.cuda.memory
    yield
    for step in range(4):
        with torch.profiler.record_function(f"## step {step} ##"):
            if hasattr(memory, "_set_memory_metadata"):
                memory._set_memory_metadata(f"phase {step}")
            train(1, model=model, optimizer=optimizer)
    if hasattr(memory, "_annotate_tensor"):
        memory._annotate_tensor(model[0].weight, "first weight")
    if hasattr(memory, "_set_memory_metadata"):
        memory._set_memory_metadata("")
    yield model, optimizer


def pinned():
    """Pinned host memory beside memory of the device."""
    kept = []
    for turn in range(10):
        if turn == 5:
            yield
        host = torch.empty(10_000 * (1 + turn % 4)).pin_memory()
        kept += [host, host.to("cuda", non_blocking=True)][turn % 2 :]
    yield kept


SCENARIOS = {scenario.__name__: scenario for scenario in (
    training, fragments, pools, pending, oom, devices, annotations, pinned)}
