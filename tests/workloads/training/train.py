"""A training in which PyTorch accounts for every block.

At the end it writes `torch.cuda.memory_stats()` to --stats. It leaves by `exit` (the interpreter
then frees tensors, after the statistics) or by `os._exit` (the statistics are final).
"""

import argparse
import json
import os

import torch
from torch import nn

from models import MODELS, batch

parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=sorted(MODELS), default="mlp")
parser.add_argument("--amp", action="store_true")
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--optimizer", choices=["sgd", "adam"], default="adam")
parser.add_argument("--leak", choices=["none", "hook"], default="none")
parser.add_argument("--stats", help="where to write memory_stats() as JSON")
parser.add_argument("--quick-exit", action="store_true")
parser.add_argument("--forever", action="store_true", help="train until killed; writes a line after each step")
args = parser.parse_args()

device = torch.device("cuda")
model = MODELS[args.model]().to(device)
optimizer = {
    "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
    "adam": lambda: torch.optim.Adam(model.parameters()),
}[args.optimizer]()
scaler = torch.amp.GradScaler("cuda", enabled=args.amp)
criterion = nn.CrossEntropyLoss()
captured = []


def keep_features(module, inputs, output):
    captured.append(output.detach().clone())  # the planted leak


if args.leak == "hook":
    list(model.children())[-2].register_forward_hook(keep_features)

step = 0
while args.forever or step < args.steps:
    inputs, labels = batch(model, device)
    optimizer.zero_grad()
    with torch.autocast("cuda", enabled=args.amp):
        loss = criterion(model(inputs), labels)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    step += 1
    if args.forever:
        print(step, flush=True)

print(f"trained {args.steps} steps, loss {loss.item():.4f}", flush=True)
if args.stats:
    torch.cuda.synchronize()
    with open(args.stats, "w", encoding="utf-8") as file:
        json.dump(torch.cuda.memory_stats(), file)
if args.quick_exit:
    os._exit(0)
