"""A deterministic training, and a variant that keeps one tensor more.

--stats gets PyTorch's numbers from torch.cuda.memory_stats(): [peak bytes, bytes at the end].
"""

import argparse
import json
import os

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--keep", type=int, default=0, help="bytes of the one tensor more")
parser.add_argument("--stats")
args = parser.parse_args()

device = torch.device("cuda")
kept = []


def step(model, optimizer):
    inputs = torch.randn(64, 256, device=device)
    optimizer.zero_grad()
    hidden = model(inputs)
    loss = (hidden * hidden).sum()
    loss.backward()
    optimizer.step()


def train():
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for number in range(args.steps):
        step(model, optimizer)
        if args.keep and number == 3:
            kept.append(torch.empty(args.keep, dtype=torch.uint8, device=device))  # the one more
    return model, optimizer


everything = train()
torch.cuda.synchronize()
if args.stats:
    stats = torch.cuda.memory_stats()
    with open(args.stats, "w", encoding="utf-8") as file:
        json.dump([stats["allocated_bytes.all.peak"], stats["allocated_bytes.all.current"]], file)
os._exit(0)
