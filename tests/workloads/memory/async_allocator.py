"""Trains briefly on the configured allocator, or captures the work into a CUDA graph and launches
it.

usage: async_allocator.py [--graph]
"""

import os
import sys

import torch

layer = torch.nn.Linear(512, 512, device="cuda")
data = torch.zeros(64, 512, device="cuda")


def step(x):
    return torch.relu(layer(x)) + layer(torch.relu(x))


if "--graph" in sys.argv:
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step(data)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = step(data)
        for _ in range(5):
            graph.replay()
        del graph, kept
else:
    for _ in range(5):
        step(data).sum().backward()
        layer.zero_grad()
torch.cuda.synchronize()
torch.cuda.empty_cache()
print("done", flush=True)
# PyTorch 2.15 with this allocator aborts in about half of its ordinary exits, traced or not.
os._exit(0)
