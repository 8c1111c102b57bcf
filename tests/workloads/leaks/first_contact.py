"""Programs of people who use the tool for the first time: NAME [OPTION].

Some leak and some are healthy; tests/suite/analysis/test_first_contact.py says what a report may
claim of each.
"""

import collections
import ctypes
import json
import os
import random
import signal
import sys
import time

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Model(nn.Module):
    def __init__(self, width=256, layers=24):
        super().__init__()
        self.embedding = nn.Linear(width, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.head = nn.Linear(width, 100)

    def forward(self, x):
        x = torch.relu(self.embedding(x))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def one_pass(stacks="all"):
    """Warms up, then dumps PyTorch's snapshot of one more pass, whose graph is freed."""
    model, x = Model().cuda(), torch.randn(512, 256, device="cuda")

    def run():
        model(x).square().mean()

    for _ in range(3):
        run()
    torch.cuda.memory._record_memory_history(stacks=stacks)
    run()
    torch.cuda.memory._dump_snapshot("pass.pickle")


def passes_without_steps():
    """Runs its model once; nothing stays."""
    model, x = Model().cuda(), torch.randn(512, 256, device="cuda")
    model(x).square().mean()
    torch.empty(1 << 20, device="cuda")


def cache():
    """Allocates a cache and does nothing else."""
    return [torch.empty(1 << 20, device="cuda") for _ in range(48)]


def served_cache():
    """Allocates a cache and then serves requests."""
    blocks = cache()
    for request in range(300):
        blocks[request % 48].add_(torch.ones(1 << 20, device="cuda"))


def validation():
    """Keeps the graph of three validation passes in 40 steps."""
    model, losses = Model(layers=4).cuda(), []
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(40):
        optimizer.zero_grad()
        model(torch.randn(512, 256, device="cuda")).square().mean().backward()
        optimizer.step()
        if step % 12 == 11:
            losses.append(model(torch.randn(512, 256, device="cuda")).square().mean())  # kept


def zero_grad():
    """Has an optimizer whose step allocates nothing after the first."""
    model = Model(layers=2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(30):
        optimizer.zero_grad()  # the visible call
        model(torch.randn(64, 256, device="cuda")).square().mean().backward()
        optimizer.step()


def first_step():
    """Has room for weights and gradients, but not for Adam's state."""
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(12))).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(16, 2048, device="cuda")).square().mean().backward()
    optimizer.step()


def resident_input():
    """Calls its model again and again on one input, and keeps the outputs."""
    model, x = Model(layers=3).cuda(), torch.randn(512, 256, device="cuda")
    with torch.no_grad():
        return [model(x) for _ in range(200)]  # kept


def two_phases():
    """Keeps a tensor in each step, by one helper that two phases call."""
    model, kept = Model(layers=2).cuda(), []
    optimizer = torch.optim.Adam(model.parameters())

    def remember():
        kept.append(torch.empty(1 << 20, device="cuda"))  # helper

    def step():
        optimizer.zero_grad()
        model(torch.randn(64, 256, device="cuda")).square().mean().backward()
        optimizer.step()

    for _ in range(30):
        step()
        remember()
    for _ in range(30):
        step()
        remember()


def pinned_pages():
    """An uploader's pinned buffers go to PyTorch's cache, from which an archive takes and keeps."""
    archive, model = [], nn.Linear(512, 512).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(40):
        staging = torch.empty(128, 512, pin_memory=True)  # cache grows here
        prediction = model(staging.to("cuda", non_blocking=True))
        del staging
        optimizer.zero_grad()
        prediction.square().mean().backward()
        optimizer.step()
        torch.cuda.synchronize()
        page = torch.empty(128, 512, pin_memory=True)
        page.copy_(prediction.detach())
        archive.append(page)


def routes():
    """A server whose requests have no allocation in common, and that notes when it leaks."""
    weight, kept, draw = torch.randn(256, 256, device="cuda"), [], random.Random(3)
    seconds = []
    for _ in range(400):
        route = draw.choice(["embed", "search", "norms"])
        if route == "embed":
            (torch.randn(draw.randint(1, 60), 256, device="cuda") @ weight).sum().item()
        elif route == "search":
            kept.append(torch.empty(1 << 18, device="cuda"))  # result
            (kept[-1][:256] * weight).max().item()
            seconds.append(time.monotonic())
        else:
            weight.norm().item() + weight.mean().item()
        time.sleep(0.005)
    print(json.dumps(seconds))


def two_leaks(how="exits"):
    """Keeps an output in each step and a graph in every tenth; caches, evaluates, and marks steps.

    It is killed in step 90 of 100, dumps PyTorch's snapshot of all of it, or exits.
    """
    step_done = ctypes.CDLL(None).gpumemtrace_step if "gpumemtrace" in os.environ.get("LD_PRELOAD", "") else int
    if how == "snapshot":
        torch.cuda.memory._record_memory_history(stacks="python")
    model, outputs, losses, recent = Model(layers=2).cuda(), [], [], collections.deque(maxlen=8)
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(100):
        optimizer.zero_grad()
        prediction = model(torch.randn(256, 256, device="cuda"))
        prediction.square().mean().backward()
        optimizer.step()
        outputs.append(prediction.detach().clone())  # leaked output
        recent.append(prediction.detach().clone())
        if step % 10 == 9:
            batch = torch.randn(256, 256, device="cuda")
            losses.append(model(batch).square().mean())  # leaked graph
        torch.cuda.synchronize()
        if how == "killed" and step == 90:
            os.kill(os.getpid(), signal.SIGKILL)
        step_done()
    if how == "snapshot":
        torch.cuda.memory._dump_snapshot("run.pickle")


if __name__ == "__main__":
    kept = globals()[sys.argv[1]](*sys.argv[2:])
