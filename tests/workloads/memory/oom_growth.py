"""Trains 15 steps and runs out of memory in a way that the argument names.

usage: oom_growth.py VARIANT

  validation  a validation loop without no_grad keeps its losses in a global; its second round fails
  marks       the same, with gpumemtrace_step() in both loops
  phases      four validation phases of which each leaves its losses
  main        the same as validation, in main() with local variables
  too_big     the first forward pass does not fit
  retry       a batch does not fit, and the program goes on with half of it
  again       a batch does not fit four times, and the program ends
  every_step  a list keeps the output of every training step
"""

import ctypes
import sys

import torch
from torch import nn

variant = sys.argv[1]
mark_step = ctypes.CDLL(None).gpumemtrace_step
WIDTH = 2048
ROWS = 4096
losses = []


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        h = self.wide(x)
        return x + torch.relu(h)


class Net(nn.Module):
    def __init__(self, depth=4):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.head = nn.Linear(WIDTH, 16)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # line: head


def batch(rows):
    return torch.randn(rows, WIDTH, device="cuda")


def train_step(model, optimizer, rows, kept=None):
    optimizer.zero_grad()
    output = model(batch(rows))  # line: train
    loss = output.pow(2).mean()
    loss.backward()
    optimizer.step()
    if kept is not None:
        kept.append(torch.zeros(4 << 20, device="cuda"))  # line: kept


def train(model, optimizer, steps, rows=512, kept=None):
    for _ in range(steps):
        if variant == "marks":
            mark_step()
        train_step(model, optimizer, rows, kept)


def validate(model, batches, kept):
    for _ in range(batches):
        if variant == "marks":
            mark_step()
        x = batch(ROWS)
        loss = model(x).pow(2).mean()  # line: validate
        kept.append(loss)


def build(depth=4):
    model = Net(depth).cuda()  # line: build
    return model, torch.optim.Adam(model.parameters())


def main():
    model, optimizer = build()
    kept = []
    train(model, optimizer, 15)
    for _ in range(2):
        validate(model, 4, kept)  # line: main


if variant in ("validation", "marks"):
    model, optimizer = build()
    train(model, optimizer, 15)
    for _ in range(2):
        validate(model, 4, losses)
elif variant == "phases":
    model, optimizer = build()
    for _ in range(4):
        train(model, optimizer, 15)
        validate(model, 1, losses)
    train(model, optimizer, 15, rows=8 * ROWS)
elif variant == "main":
    main()
elif variant == "too_big":
    model, optimizer = build(depth=40)
    train(model, optimizer, 1, rows=ROWS)
elif variant == "retry":
    model, optimizer = build()
    train(model, optimizer, 5)
    rows = 8 * ROWS
    for _ in range(10):
        try:
            train_step(model, optimizer, rows)  # line: retry
        except torch.cuda.OutOfMemoryError:
            rows //= 2
    print("rows", rows)
elif variant == "again":
    model, optimizer = build()
    train(model, optimizer, 5)
    for attempt in range(4):
        try:
            train_step(model, optimizer, 8 * ROWS)
        except torch.cuda.OutOfMemoryError:
            if attempt == 3:
                raise
            train(model, optimizer, 1)
elif variant == "every_step":
    model, optimizer = build()
    train(model, optimizer, 1000, kept=losses)
