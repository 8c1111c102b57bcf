"""A training in marked steps and phases, with an out-of-memory error.

Writes PyTorch's peaks of each step to --peaks: [allocated, reserved] in bytes.
"""

import argparse
import ctypes
import json

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--leak", action="store_true")
parser.add_argument("--peaks", required=True)
args = parser.parse_args()

ours = ctypes.CDLL(None)
ours.gpumemtrace_phase_begin.argtypes = [ctypes.c_char_p]
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.Adam(model.parameters())
kept, peaks = [], []


def train(rows):
    inputs = torch.zeros(rows, 256, device="cuda")
    optimizer.zero_grad()
    model(inputs).sum().backward()
    optimizer.step()
    if args.leak:
        kept.append(torch.zeros(1 << 20, dtype=torch.uint8, device="cuda"))


for step in range(args.steps):
    ours.gpumemtrace_step()
    torch.cuda.reset_peak_memory_stats()
    ours.gpumemtrace_phase_begin(b"=train")
    # Steps differ, so that a mean differs from any of them.
    train(64 << step % 4)
    ours.gpumemtrace_phase_end()
    if step == args.steps // 2:
        try:
            torch.zeros(1 << 50, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            pass
    peaks.append([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()])
# The last step ends with the begin of another one.
ours.gpumemtrace_step()
with open(args.peaks, "w") as file:
    json.dump(peaks, file)
