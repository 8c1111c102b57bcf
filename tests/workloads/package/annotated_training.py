"""A training with named phases. The last line is JSON: PyTorch's numbers per phase, and the report
that the program requests about itself.
"""

import json

import torch
from torch import nn

import gpumemtrace

model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
STEPS, TURNS = 6, 2
phases = {}


def held():
    return torch.cuda.memory_allocated()


def measured(name, part):
    """Runs one phase and measures it with PyTorch."""
    with gpumemtrace.phase(name):
        torch.cuda.reset_peak_memory_stats()
        before = held()
        part()
        of_phase = phases.setdefault(name, {"peak_live_bytes": 0, "net_bytes": 0})
        of_phase["peak_live_bytes"] = max(of_phase["peak_live_bytes"], torch.cuda.max_memory_allocated())
        of_phase["net_bytes"] += held() - before


def train():
    for _ in range(STEPS):
        gpumemtrace.step()
        loss = model(torch.randn(64, 256, device="cuda")).sum()
        loss.backward()
        optimizer.step()


def evaluate():
    with torch.no_grad():
        model(torch.randn(16, 256, device="cuda"))


for _ in range(TURNS):
    measured("train", train)
    measured("evaluate", evaluate)
print(json.dumps({"steps": STEPS * TURNS, "phases": phases, "report": gpumemtrace.report()}))
