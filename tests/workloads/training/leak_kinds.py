"""A training loop that leaks, at each step, memory that is no tensor of the program. Steps are
marked.

usage: leak_kinds.py KIND [--steps N]

  device    memory that a library allocates from the driver and never frees
  pinned    pinned host memory
  pools     pools that are kept and never reused, with what they reserved
  stream    a side stream with growing buffers: its cached blocks never fit again
  gradients gradients, allocated by autograd threads
  none      nothing
"""

import argparse
import ctypes

import torch
from torch import nn

from models import Mlp, batch

DEVICE_BYTES = 3 << 20
PINNED_BYTES = 1 << 20

parser = argparse.ArgumentParser()
parser.add_argument("kind")
parser.add_argument("--steps", type=int, default=24)
args = parser.parse_args()

device = torch.device("cuda")
model = Mlp().to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mark_step = ctypes.CDLL(None).gpumemtrace_step
kept = []


def ask_driver(step):
    address = ctypes.c_uint64()
    driver = ctypes.CDLL("libcuda.so.1")
    size = ctypes.c_size_t(DEVICE_BYTES)
    assert driver.cuMemAlloc_v2(ctypes.byref(address), size) == 0  # line: device


def pin(step):
    kept.append(torch.empty(PINNED_BYTES, dtype=torch.uint8, pin_memory=True))  # line: pinned


def use_pool(step):
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        torch.empty(1 << 20, device=device)  # line: pools
    kept.append(pool)


side = torch.cuda.Stream()


def use_stream(step):
    with torch.cuda.stream(side):
        torch.empty((20 << 20) * (step + 1), dtype=torch.uint8, device=device)  # line: stream


def keep_gradients(step):
    kept.extend(parameter.grad for parameter in model.parameters())
    optimizer.zero_grad(set_to_none=True)


KINDS = {"device": ask_driver, "pinned": pin, "pools": use_pool, "stream": use_stream, "gradients": keep_gradients,
         "none": lambda step: None}
for step in range(args.steps):
    mark_step()
    inputs, labels = batch(model, device)
    optimizer.zero_grad(set_to_none=True)
    loss = criterion(model(inputs), labels)  # line: gradients
    loss.backward()  # line: backward
    optimizer.step()
    KINDS[args.kind](step)
mark_step()
