"""Trains on several processes, one device each; one of them keeps more than the others.

usage: torchrun --nproc-per-node N ranks.py [--steps N] [--leaking-rank R] [--larger-rank R]
"""

import argparse
import json
import os

import torch
import torch.distributed as dist
from torch import nn

from models import Mlp

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--leaking-rank", type=int, default=-1)
parser.add_argument("--larger-rank", type=int, default=-1)
parser.add_argument("--out", default=".")
args = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = nn.parallel.DistributedDataParallel(Mlp().cuda())
optimizer = torch.optim.AdamW(model.parameters())
kept = []
if rank == args.larger_rank:
    table = torch.zeros(128 << 20, dtype=torch.uint8, device="cuda")  # line: larger

for step in range(args.steps):
    data = torch.zeros(64, *Mlp.input_shape[1:], device="cuda")
    loss = model(data).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == args.leaking_rank and step >= 6:
        kept.append(torch.zeros(1 << 20, dtype=torch.uint8, device="cuda"))  # line: leaking

with open(f"{args.out}/stats.{rank}.json", "w") as file:
    json.dump({"peak": torch.cuda.max_memory_allocated(), "end": torch.cuda.memory_allocated()}, file)
dist.destroy_process_group()
# PyTorch 2.15 sometimes aborts at exit, traced or not, and torchrun then ends the other ranks.
os._exit(0)
