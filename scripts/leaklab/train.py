"""One training of the leak lab: a healthy loop, one of eight mistakes in it, or the mistake fixed.

usage: train.py PATTERN [--fixed] [--steps N] [--batch N] [--stats FILE]

The patterns follow "What I Learned Profiling PyTorch Memory Leaks Across Two Backends". Lines with
`# line: PATTERN` must be reported. --stats gets PyTorch's numbers at the end of each step, as JSON:
{"bytes": [...], "blocks": [...]}.
"""

import argparse
import contextlib
import ctypes
import json
import os
from collections import deque

import torch
from torch import nn

from model import ResNet18

parser = argparse.ArgumentParser()
parser.add_argument("pattern")
parser.add_argument("--fixed", action="store_true")
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--batch", type=int, default=128)
parser.add_argument("--stats")
args = parser.parse_args()

device = torch.device("cuda")
model = ResNet18().to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
# Marks step boundaries, so that the report and PyTorch's numbers cover the same steps.
mark_step = getattr(ctypes.CDLL(None), "gpumemtrace_step", lambda: None)
# A leak is a list that is never emptied; fixed, it holds the last item only, or plain numbers.
kept = []
held = {"bytes": [], "blocks": []}


def backward(images, labels):
    outputs = model(images)
    loss = criterion(outputs, labels)
    loss.backward()
    return outputs.detach()


def train(images, labels, step):
    optimizer.zero_grad(set_to_none=True)
    backward(images, labels)
    optimizer.step()


def forward_hook():
    recent = deque(maxlen=1)

    def hook(module, inputs, output):
        if args.fixed:
            recent.append(output.detach().cpu())
        else:
            kept.append(output.detach())

    model.layer4.register_forward_hook(hook)
    return train


def zero_grad(images, labels, step):
    if args.fixed:
        optimizer.zero_grad(set_to_none=True)
    backward(images, labels)
    if step % 4 == 3:
        for grad in [parameter.grad for parameter in model.parameters()]:
            snapshot = grad.norm().cpu() if args.fixed else grad.clone()  # line: zero_grad
            kept.append(snapshot)
    optimizer.step()


def tensor_retention(images, labels, step):
    train(images, labels, step)
    with torch.no_grad():
        hidden = model.features(images)
        logits = model.head(hidden)
    if args.fixed:
        kept.append(float(hidden.mean().cpu()))
        return
    kept.append(hidden.detach().clone())  # line: tensor_retention
    if step % 4 == 0:
        kept.append(logits.detach().clone())


def autocast_scope(images, labels, step):
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.float16):
        features = model.features(images)
        projected = model.head(features)  # line: autocast_scope
    criterion(projected.float(), labels).backward()
    optimizer.step()
    kept.append(float(projected.detach().float().mean().cpu()) if args.fixed else projected.detach())


def optimizer_duplication(images, labels, step):
    train(images, labels, step)
    if step % 4 == 3:
        other = torch.optim.Adam(model.parameters())
        other.step()  # line: optimizer_duplication
        if not args.fixed:
            kept.append(other)


scaler = torch.amp.GradScaler("cuda")
ACCUMULATE = 4


def grad_scaler(images, labels, step):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(images), labels) / ACCUMULATE
    scaled = scaler.scale(loss)  # line: grad_scaler
    scaled.backward()
    kept.append(float(scaled.detach().cpu()) if args.fixed else scaled)
    # The mistake: an optimizer step for each micro-batch.
    if not args.fixed or step % ACCUMULATE == ACCUMULATE - 1:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)


def retained_validation(images, labels, step):
    train(images, labels, step)
    with torch.no_grad() if args.fixed else contextlib.nullcontext():
        checked = model(images)  # line: retained_validation
    if args.fixed:
        kept.append(float(checked.mean().cpu()))
    else:
        kept.append(checked)
        kept.append(images.clone())


def detached_fragments(images, labels, step):
    train(images, labels, step)
    with torch.no_grad():
        cached = model.features(images)  # line: detached_fragments
    root = cached.detach().requires_grad_(True)
    # As large as its input, which autograd keeps.
    fragment = torch.relu(root * 2.0)
    kept.append(float(fragment.detach().mean().cpu()) if args.fixed else fragment)


PATTERNS = {
    "baseline": lambda: train,
    "forward_hook": forward_hook,
    "zero_grad": lambda: zero_grad,
    "tensor_retention": lambda: tensor_retention,
    "autocast_scope": lambda: autocast_scope,
    "optimizer_duplication": lambda: optimizer_duplication,
    "grad_scaler": lambda: grad_scaler,
    "retained_validation": lambda: retained_validation,
    "detached_fragments": lambda: detached_fragments,
}
one_step = PATTERNS[args.pattern]()
for step in range(args.steps):
    mark_step()
    images = torch.randn(args.batch, 3, 32, 32).to(device)
    labels = torch.zeros(args.batch, dtype=torch.long).to(device)
    try:
        one_step(images, labels, step)
    except torch.OutOfMemoryError:
        print(f"out of memory in step {step}", flush=True)
        break
    stats = torch.cuda.memory_stats()
    held["bytes"].append(stats["allocated_bytes.all.current"])
    held["blocks"].append(stats["allocation.all.current"])
mark_step()
if args.stats:
    with open(args.stats, "w", encoding="utf-8") as file:
        json.dump(held, file)
# A scan of holders at exit needs a program that returns normally.
if "GPUMEMTRACE_HOLDERS" not in os.environ:
    os._exit(0)
