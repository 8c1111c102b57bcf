#!/usr/bin/env python3
"""Checks real PyTorch on the simulated GPU: everything that programs rely on must work.

Each scenario runs in its own process, because the simulated device reads its settings once. Most
are forks of a process that has imported PyTorch. The log of each is replayed by check_log.py. Run
it with the Python of an environment from scripts/simgpu-venv:

    ENV/bin/python crates/simgpu/tests/smoke.py [NAME...]      exit status 0: all passed
"""

import concurrent.futures
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time

SCENARIOS = {}
WITHOUT_CALLS = {"no_device"}  # scenarios without a log
MIB = 1 << 20
FORKS = multiprocessing.get_context("forkserver")


def scenario(**environment):
    def register(function):
        SCENARIOS[function.__name__] = (function, environment)
        return function

    return register


def steps(model, make_input, dtype=None, scaler=None, count=5):
    import torch

    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(count):
        with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
            loss = model(make_input()).float().square().mean()
        optimizer.zero_grad(set_to_none=True)
        if scaler:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
    assert loss.item() == 0.0, loss
    stats = torch.cuda.memory_stats()
    if torch.cuda.get_allocator_backend() == "native":
        live = stats["allocation.all.allocated"] - stats["allocation.all.freed"]
        assert live == stats["allocation.all.current"] > 0


def mlp():
    import torch

    return torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(7)]).cuda()


def resnet18():
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, wide, narrow, stride):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(wide, narrow, 3, stride, 1, bias=False), nn.BatchNorm2d(narrow), nn.ReLU(inplace=True),
                nn.Conv2d(narrow, narrow, 3, 1, 1, bias=False), nn.BatchNorm2d(narrow))
            same = stride == 1 and wide == narrow
            self.side = nn.Identity() if same else nn.Sequential(
                nn.Conv2d(wide, narrow, 1, stride, bias=False), nn.BatchNorm2d(narrow))

        def forward(self, x):
            return torch.relu(self.body(x) + self.side(x))

    layers, wide = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for narrow, stride in [(64, 1), (128, 2), (256, 2), (512, 2)]:
        layers += [Block(wide, narrow, stride), Block(narrow, narrow, 1)]
        wide = narrow
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)).cuda()


def transformer():
    import torch

    layer = torch.nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 4).cuda()


def image():
    import torch

    return torch.randn(8, 3, 224, 224, device="cuda")


def rows():
    import torch

    return torch.randn(32, 256, device="cuda")


def tokens():
    import torch

    return torch.randn(8, 64, 128, device="cuda")


@scenario()
def numbers():
    import torch

    assert torch.cuda.is_available() and torch.cuda.device_count() == 1
    assert torch.cuda.get_device_capability() == (9, 0)
    assert torch.cuda.get_device_properties(0).total_memory == 80 << 30
    assert torch.cuda.get_device_properties(0).multi_processor_count == 132
    x = torch.empty(1 << 20, device="cuda")
    assert torch.cuda.memory_allocated() == 4194304
    assert torch.cuda.memory_reserved() == 20971520
    assert torch.cuda.mem_get_info() == (85878374400, 85899345920)
    first = x.data_ptr()
    del x
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    assert torch.empty(1 << 20, device="cuda").data_ptr() == first, "addresses are reused"
    assert torch.zeros(3, device="cuda").tolist() == [0, 0, 0]


@scenario()
def train_fp32():
    steps(mlp(), rows)
    steps(resnet18(), image)
    steps(transformer(), tokens)


@scenario()
def train_amp():
    import torch

    scaler = torch.amp.GradScaler("cuda") if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler()
    steps(mlp(), rows, torch.float16, scaler)
    steps(resnet18(), image, torch.float16, scaler)
    steps(transformer(), tokens, torch.bfloat16)


@scenario()
def train_without_cudnn():
    import torch

    torch.backends.cudnn.enabled = False
    steps(resnet18(), image)


def recurrent_models():
    """Yields constructor arguments of cuDNN's cells: each mode, and each option that moves weights."""
    import torch

    for kind in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN):
        yield kind, {}
        yield kind, {"num_layers": 3, "bidirectional": True, "dropout": 0.25}
        yield kind, {"num_layers": 2, "bias": False, "batch_first": True}
    yield torch.nn.RNN, {"nonlinearity": "relu"}
    yield torch.nn.LSTM, {"proj_size": 24}
    yield torch.nn.LSTM, {"proj_size": 24, "num_layers": 2, "bidirectional": True}
    yield torch.nn.LSTM, {"proj_size": 24, "bias": False}


@scenario()
def recurrent_weights():
    import torch

    with torch.random.fork_rng():
        for kind, options in recurrent_models():
            for dtype in (torch.float32, torch.float16, torch.float64):
                model = kind(48, 64, **options).to("cuda", dtype)
                own = sum(weight.numel() for weight in model.parameters())
                # cuDNN's weight space has room for biases, also if the module has none.
                gates = {"LSTM": 4, "GRU": 3}.get(kind.__name__, 1)
                cells = model.num_layers * (2 if model.bidirectional else 1)
                own += 0 if model.bias else cells * gates * 2 * 64
                storages = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
                assert len(storages) == 1, (kind, options, "weights are not in one block")
                first = next(model.parameters())
                assert first.untyped_storage().nbytes() == own * first.element_size(), (kind, options, dtype)
                places = sorted((weight.data_ptr(), weight.nbytes) for weight in model.parameters())
                for (start, size), (following, _) in zip(places, places[1:]):
                    assert start + size <= following, "weights overlap"


@scenario()
def recurrent_training():
    import torch
    from torch.nn.utils.rnn import pack_padded_sequence

    class Last(torch.nn.Module):
        def __init__(self, cell):
            super().__init__()
            self.cell = cell

        def forward(self, x):
            y = self.cell(x)[0]
            return y.data if hasattr(y, "data") and not isinstance(y, torch.Tensor) else y

    def batch():
        return torch.randn(12, 8, 48, device="cuda")

    def packed():
        return pack_padded_sequence(batch(), [12, 9, 9, 4, 2, 2, 1, 1])

    scaler = torch.amp.GradScaler("cuda") if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler()
    for kind, options in recurrent_models():
        model = Last(kind(48, 64, **options).cuda())
        steps(model, batch, count=2)
        steps(model, batch, torch.bfloat16, count=2)
        steps(model, batch, torch.float16, scaler, count=2)
        if not options.get("batch_first"):
            steps(model, packed, count=2)
        with torch.no_grad():
            model.eval()(batch())
        # torch.nn does not compact bfloat16 weights; PyTorch then does so in each call.
        model = model.train().bfloat16()
        steps(model, lambda: batch().bfloat16(), count=2)
    assert torch.cuda.max_memory_allocated() < 256 * MIB, torch.cuda.max_memory_allocated()


@scenario()
def recurrent_memory():
    import torch

    # The formulas of crates/simgpu/toolkit/src/cudnn/rnn_layout.rs.
    cell = torch.nn.LSTM(128, 256, 2).cuda()
    x = torch.zeros(10, 4, 128, device="cuda")
    before = torch.cuda.memory_allocated()
    y, (h, c) = cell(x)
    kept = sum((t.nbytes + 511) // 512 * 512 for t in (y, h, c))
    reserve = 10 * 4 * (2 * 5 * 256 + 256) * 4
    zeros = 2 * (2 * 4 * 256 * 4)  # initial states, kept for the backward pass
    assert torch.cuda.memory_allocated() - before == kept + reserve + zeros


@scenario(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
def expandable_segments():
    import torch

    steps(mlp(), rows)
    steps(resnet18(), image)
    held = [torch.empty(30 * MIB, dtype=torch.uint8, device="cuda") for _ in range(4)]
    del held[1:3]
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] == (80 << 30) - torch.cuda.memory_reserved()


@scenario(PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
def cuda_malloc_async():
    import torch

    assert torch.cuda.get_allocator_backend() == "cudaMallocAsync"
    steps(mlp(), rows)
    steps(resnet18(), image)
    torch.cuda.empty_cache()


@scenario(PYTORCH_NO_CUDA_MEMORY_CACHING="1")
def no_caching():
    import torch

    free = torch.cuda.mem_get_info()[0]
    x = torch.empty(1 << 20, device="cuda")
    assert free - torch.cuda.mem_get_info()[0] == 4 * MIB
    del x
    assert torch.cuda.mem_get_info()[0] == free


def fill_until_full():
    import torch

    held = []
    try:
        while True:
            held.append(torch.empty(20 * MIB, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError as error:
        text = str(error)
    count = len(held)
    held.clear()
    torch.cuda.empty_cache()
    again = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
    assert again.numel() == 100 * MIB
    return count, text


@scenario(SIMGPU_MEM="256M")
def out_of_memory():
    import torch

    count, text = fill_until_full()
    assert count == 12, count
    for part in ["Tried to allocate 20.00 MiB", "total capacity of 256.00 MiB", "16.00 MiB is free",
                 "this process has 240.00 MiB memory in use", "240.00 MiB is allocated by PyTorch"]:
        assert part in text, text
    stats = torch.cuda.memory_stats()
    assert stats["num_ooms"] == 1 and stats["num_alloc_retries"] >= 1


@scenario(SIMGPU_MEM="256M", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
def out_of_memory_expandable():
    count, text = fill_until_full()
    assert count == 12 and "total capacity of 256.00 MiB" in text, text


@scenario(SIMGPU_MEM="256M", PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
def out_of_memory_async():
    count, _ = fill_until_full()
    assert count == 12, count


@scenario()
def pinned_memory():
    import torch

    x = torch.empty(MIB, pin_memory=True)
    assert x.is_pinned() and not torch.empty(MIB).is_pinned()
    y = x.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    assert y.cpu().sum().item() == 0
    rt, own = torch.cuda.cudart(), torch.zeros(1 << 16)
    assert int(rt.cudaHostRegister(own.data_ptr(), own.numel() * 4, 0)) == 0 and own.is_pinned()
    assert int(rt.cudaHostUnregister(own.data_ptr())) == 0 and not own.is_pinned()


class Numbers:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        import torch

        return torch.full((8,), float(index))


@scenario()
def data_loader_workers():
    import torch

    torch.zeros(1, device="cuda")
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=2, pin_memory=True)
    total = sum(batch.sum().item() for batch in loader for _ in [batch.cuda()])
    assert total == 8 * sum(range(64))


@scenario()
def forked_child_is_refused():
    import torch

    torch.zeros(1, device="cuda")
    pid = os.fork()
    if pid == 0:
        import ctypes

        code = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW).cuInit(0)
        os._exit(0 if code == 3 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    torch.zeros(1, device="cuda")


@scenario(SIMGPU_EVENT_DELAY_US="200000")
def record_stream():
    import torch

    side = torch.cuda.Stream()
    x = torch.empty(MIB, device="cuda")
    first = x.data_ptr()
    x.record_stream(side)
    del x
    assert torch.empty(MIB, device="cuda").data_ptr() != first, "reused while an event is pending"
    assert torch.cuda.memory_stats()["active_bytes.all.current"] >= 4 * MIB
    time.sleep(0.25)
    y = [torch.empty(MIB, device="cuda") for _ in range(4)]
    assert first in [t.data_ptr() for t in y], "not reused after the event"
    event = torch.cuda.Event()
    event.record(side)
    assert not event.query()
    start = time.monotonic()
    event.synchronize()
    assert event.query() and time.monotonic() - start > 0.1


@scenario()
def cuda_graph():
    import torch

    model = mlp()
    x = torch.zeros(32, 256, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        model(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    for _ in range(3):
        graph.replay()
    assert y.shape == (32, 256)
    before = torch.cuda.memory_reserved()
    del y
    graph.reset()
    torch._C._cuda_clearCublasWorkspaces()  # made during the capture, so it holds the graph's pool
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < before
    # A synchronising call invalidates a capture, and the program recovers.
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            x.sum().item()
        raise AssertionError("a synchronising call was captured")
    except RuntimeError as error:
        assert "captur" in str(error), error
    torch.cuda.synchronize()
    assert x.sum().item() == 0


@scenario(SIMGPU_DEVICES="2")
def two_devices():
    import torch

    assert torch.cuda.device_count() == 2
    x = torch.zeros(MIB, device="cuda:0")
    y = x.to("cuda:1")
    assert y.device.index == 1 and torch.cuda.memory_allocated(1) == 4 * MIB
    assert torch.cuda.can_device_access_peer(0, 1)
    assert torch.cuda.mem_get_info(1)[0] == (80 << 30) - 20 * MIB * (1 if torch.cuda.memory_reserved(1) else 0)
    model = torch.nn.DataParallel(torch.nn.Linear(8, 8).cuda())
    model(torch.randn(4, 8, device="cuda:0")).sum().backward()


@scenario(SIMGPU_DEVICES="0")
def no_device():
    import torch

    assert not torch.cuda.is_available() and torch.cuda.device_count() == 0


@scenario(SIMGPU_MEM="lots", SIMGPU_COPY="some")
def malformed_switches():
    import torch

    assert torch.cuda.mem_get_info()[1] == 80 << 30


@scenario(SIMGPU_COPY="all")
def real_copies():
    import torch

    x = torch.arange(1000, dtype=torch.float32)
    assert torch.equal(x.cuda().cpu(), x)


@scenario(SIMGPU_FAIL="cuMemAlloc:2:999")
def injected_failure():
    import torch

    torch.empty(30 * MIB, device="cuda")
    try:
        torch.empty(60 * MIB, device="cuda")
        raise AssertionError("the second cuMemAlloc did not fail")
    except RuntimeError as error:
        assert "unknown error" in str(error), error
    torch.empty(60 * MIB, device="cuda")


@scenario(SIMGPU_ALT_PROCADDR="1")
def other_addresses():
    steps(mlp(), rows)


@scenario(SIMGPU_CUBLAS_BYTES="4M", SIMGPU_CONTEXT_BYTES="100M")
def library_memory():
    import torch

    x = torch.zeros(16, 16, device="cuda")
    free, total = torch.cuda.mem_get_info()
    assert total - free == 102 * MIB
    x @ x
    grown = free - torch.cuda.mem_get_info()[0] - (torch.cuda.memory_reserved() - 2 * MIB)
    assert grown == 4 * MIB, grown


@scenario()
def libraries():
    import torch

    x = torch.randn(64, 64, device="cuda")
    torch.fft.fft(x)
    torch.linalg.inv(x)
    torch.linalg.svd(x)
    x.sort()
    x.topk(3)
    x.nonzero()
    torch.unique(x)
    torch.nn.functional.scaled_dot_product_attention(*[torch.randn(1, 2, 64, 32, device="cuda") for _ in range(3)])
    torch.nn.LSTM(16, 16).cuda()(torch.randn(4, 2, 16, device="cuda"))
    torch.backends.cudnn.enabled = False
    torch.nn.LSTM(16, 16).cuda()(torch.randn(4, 2, 16, device="cuda"))
    torch.sparse.mm(torch.eye(8).to_sparse_csr().cuda(), torch.randn(8, 8, device="cuda"))


@scenario(SIMGPU_COPY="small")
def ddp_world_of_one():
    import torch
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
    store = dist.HashStore()
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).cuda())
    model(torch.randn(4, 8, device="cuda")).sum().backward()
    dist.destroy_process_group()


@scenario()
def memory_history():
    import torch

    torch.cuda.memory._record_memory_history()
    x = torch.empty(MIB, device="cuda")
    del x
    actions = [entry["action"] for entry in torch.cuda.memory._snapshot()["device_traces"][0]]
    assert {"segment_alloc", "alloc", "free_requested", "free_completed"} <= set(actions)


def run_one(name, log):
    environment = {**os.environ, **SCENARIOS[name][1], "SIMGPU_LOG": log}
    configuration = environment.get("PYTORCH_CUDA_ALLOC_CONF")
    if configuration:
        environment["PYTORCH_ALLOC_CONF"] = configuration
    started = time.monotonic()
    # The allocator's backend is chosen while PyTorch is imported.
    if "backend" in environment.get("PYTORCH_CUDA_ALLOC_CONF", ""):
        done = subprocess.run([sys.executable, __file__, "--inside", name], env=environment, capture_output=True, text=True)
        code, output = done.returncode, done.stdout + done.stderr
    else:
        code, output = run_fork(name, environment, f"{log}.out")
    seconds = time.monotonic() - started
    ok = code == 0 and "scenario passed" in output
    # torch 2.15 sometimes aborts at exit after its work is done, also untraced on a real driver.
    aborted_late = code == -6 and "scenario passed" in output
    if name in WITHOUT_CALLS and ok:
        pass
    elif ok or aborted_late:
        checker = os.path.join(os.path.dirname(os.path.abspath(__file__)), "check_log.py")
        capacity = 256 * MIB if environment.get("SIMGPU_MEM") == "256M" else 80 << 30
        checked = subprocess.run([sys.executable, checker, "--quiet", f"--capacity={capacity}", log], capture_output=True, text=True)
        output, ok = checked.stdout + checked.stderr, checked.returncode == 0
    print(f"{'pass' if ok else 'FAIL'} {seconds:5.1f} s  {name}{' (aborted at exit)' if aborted_late else ''}", flush=True)
    if not ok:
        print("    " + output.strip()[-3000:].replace("\n", "\n    "), flush=True)
    return ok


def run_fork(name, environment, output):
    process = FORKS.Process(target=run_inside, args=(name, environment, output))
    process.start()
    process.join()
    with open(output) as file:
        return process.exitcode, file.read()


def run_inside(name, environment, output):
    os.environ.update(environment)
    with open(output, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    SCENARIOS[name][0]()
    print("scenario passed", flush=True)


def main():
    if sys.argv[1:2] == ["--inside"]:
        SCENARIOS[sys.argv[2]][0]()
        print("scenario passed", flush=True)
        return 0
    # Optimizers import the second one at their first step.
    FORKS.set_forkserver_preload(["torch", "torch._dynamo"])
    names = sys.argv[1:] or list(SCENARIOS)
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        print(f"no such scenario: {', '.join(unknown)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        run = lambda name: run_one(name, os.path.join(folder, f"{name}.log"))
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            failed = [name for name, passed in zip(names, pool.map(run, names)) if not passed]
    print(f"{len(names) - len(failed)} of {len(names)} passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
