"""Functions shared by the programs under test; the harness copies this file beside each."""

import ctypes, gc, json, os, sys, threading, time  # noqa: E401, F401


def emit(**facts):
    """Appends a line of JSON for the harness; a file, because libraries may print."""
    with open(os.environ["VALIDATE_FACTS"], "a") as file:
        file.write(json.dumps(facts) + "\n")


def exit_now():
    """Exits without cleanup, so that nothing is freed after the last line."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def give_up(why):
    emit(impossible=str(why)[-400:])
    exit_now()


class Api:
    """A C library: `call` returns a function's code, `get` the value of its out-parameter."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)

    def call(self, name, *arguments):
        return getattr(self.library, name)(*arguments)

    def get(self, type, name, *arguments):
        value = type()
        code = self.call(name, ctypes.byref(value), *arguments)
        if code:
            raise OSError("%s returns %d" % (name, code))
        return value.value


def driver():
    cuda = Api(os.environ["VALIDATE_LIBCUDA"])
    cuda.call("cuInit", 0)
    return cuda


def driver_with_context():
    cuda = driver()
    context = cuda.get(ctypes.c_void_p, "cuDevicePrimaryCtxRetain", 0)
    cuda.call("cuCtxSetCurrent", ctypes.c_void_p(context))
    return cuda


class Nvml:
    """CUDA's device 0 in NVML."""

    def __init__(self):
        beside = os.path.join(os.path.dirname(os.environ["VALIDATE_LIBCUDA"]), "libnvidia-ml.so.1")
        try:
            self.nvml = Api("libnvidia-ml.so.1")
        except OSError:
            self.nvml = Api(beside)
        self.nvml.call("nvmlInit_v2")
        bus = ctypes.create_string_buffer(64)
        driver().call("cuDeviceGetPCIBusId", bus, 64, 0)
        self.device = ctypes.c_void_p()
        code = self.nvml.call("nvmlDeviceGetHandleByPciBusId_v2", bus, ctypes.byref(self.device))
        if code:
            raise OSError("nvmlDeviceGetHandleByPciBusId_v2 returns %d" % code)

    def device_used(self):
        info = (ctypes.c_uint64 * 3)()  # total, free, used
        code = self.nvml.call("nvmlDeviceGetMemoryInfo", self.device, info)
        return None if code else info[2]

    def process_used(self):
        """Returns the bytes of this process, or None. In a container its id may differ."""
        count, rows = ctypes.c_uint(64), (ctypes.c_uint64 * (3 * 64))()  # pid, bytes, instance ids
        code = self.nvml.call("nvmlDeviceGetComputeRunningProcesses_v3", self.device, ctypes.byref(count), rows)
        if code:
            return None
        used = {rows[3 * i] & 0xFFFFFFFF: rows[3 * i + 1] for i in range(count.value)}
        mine = used.get(os.getpid(), list(used.values())[0] if len(used) == 1 else None)
        return None if mine in (None, 2**64 - 1) else mine


def build(name, large=False):
    """Returns a model and a batch on the GPU; `large`: of a realistic size."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, inputs, outputs, stride):
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(outputs)
            self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(outputs)
            self.relu = nn.ReLU(inplace=True)
            self.shortcut = nn.Identity()
            if stride != 1 or inputs != outputs:
                self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

        def forward(self, x):
            out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
            return self.relu(out + self.shortcut(x))

    class Mean(nn.Module):
        def forward(self, x):
            return x.mean(1)

    if name == "mlp":
        layers = [layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.ReLU())]
        model, shape = nn.Sequential(*layers, nn.Linear(256, 10)), (32, 256)
    elif name == "resnet18":
        layers, inputs = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
        for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            layers += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
            inputs = outputs
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))
        shape = (64, 3, 224, 224) if large else (8, 3, 64, 64)
    else:
        width, depth, shape = (768, 12, (8, 512, 768)) if large else (128, 2, (8, 32, 128))
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, batch_first=True)
        model = nn.Sequential(nn.TransformerEncoder(layer, depth, enable_nested_tensor=False), Mean(), nn.Linear(width, 10))
    labels = torch.zeros(shape[0], dtype=torch.long, device="cuda")
    return model.cuda(), torch.randn(shape, device="cuda"), labels


def steps(name, amp=False, large=False):
    """Trains without end; yields after each step."""
    import torch

    model, inputs, labels = build(name, large)
    optimizer = torch.optim.Adam(model.parameters())
    scaler = (torch.amp.GradScaler("cuda") if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler()) if amp else None
    while True:
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=amp):
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        if scaler:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        yield


def train(name, amp=False, count=3):
    """Trains and frees all tensors."""
    steps_of_it = steps(name, amp)
    for _ in range(count):
        next(steps_of_it)
    steps_of_it.close()
    gc.collect()


def stats():
    """Returns the allocator's counters that a trace can reproduce."""
    import torch

    torch.cuda.synchronize()
    values = torch.cuda.memory_stats()
    names = ("allocation.all.allocated", "allocation.all.freed", "allocated_bytes.all.allocated", "allocated_bytes.all.freed",
             "allocated_bytes.all.current", "allocated_bytes.all.peak", "reserved_bytes.all.current", "reserved_bytes.all.peak")
    return {name: values[name] for name in names}


def used():
    import torch

    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free


def segments(snapshot):
    """Returns the snapshot's segments, each with (address, size) of its allocated blocks."""
    result = []
    for one in snapshot["segments"]:
        address, blocks = one["address"], []
        for block in one["blocks"]:
            if block["state"] == "active_allocated":
                blocks.append((address, block["size"]))
            address += block["size"]
        result.append(dict(address=one["address"], size=one["total_size"], blocks=blocks))
    return result


def now():
    """Returns the time in ns, on the clock of the trace."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
