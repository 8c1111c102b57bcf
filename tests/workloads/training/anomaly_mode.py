"""A training that writes, from PyTorch's anomaly mode, the forward line that created each backward
node.

Anomaly mode keeps the traceback of each node's creation. Before a node runs, a hook allocates a
marker block of a size that no tensor has. All later allocations of that thread, up to its next
marker, belong to the node. OUTPUT gets Python literals: [marker bytes, node, [[file, line,
function], ...] innermost first]; a marker without a node ends the backward pass.

usage: anomaly_mode.py OUTPUT MODEL [--amp] [--custom] [--double] [--checkpoint] [--fail]
"""

import argparse
import re
import time

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from models import MODELS, batch

FIRST_MARKER = 100_000_001
FRAME = re.compile(r'  File "(.*)", line (\d+), in (.*)\n')

parser = argparse.ArgumentParser()
parser.add_argument("output")
parser.add_argument("model", choices=sorted(MODELS))
parser.add_argument("--amp", action="store_true")
parser.add_argument("--custom", action="store_true", help="a custom function with a Python backward")
parser.add_argument("--double", action="store_true", help="a gradient of a gradient")
parser.add_argument("--checkpoint", action="store_true", help="the forward pass is computed again in the backward pass")
parser.add_argument("--fail", action="store_true", help="end with a backward pass that raises")
args = parser.parse_args()

device = torch.device("cuda")
model = MODELS[args.model]().to(device)
criterion = nn.CrossEntropyLoss()
output = open(args.output, "w", encoding="utf-8")
markers = 0


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def nodes_of(root):
    seen, left = set(), [root]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        left.extend(function for function, _ in node.next_functions)
    return seen


def traceback_of(node):
    """Returns the node's creation; for a node that another node created, the latter's."""
    while not node.metadata.get("traceback_") and node.metadata.get("parent_") is not None:
        node = node.metadata["parent_"]
    return node.metadata.get("traceback_", [])


def write_marker(node, traceback):
    global markers
    markers += 1
    size = FIRST_MARKER + markers
    torch.empty(size, dtype=torch.uint8, device=device)
    frames = [[file, int(line), function] for file, line, function in FRAME.findall("".join(traceback))]
    output.write(repr([size, node, frames[::-1]]) + "\n")


def mark(node, traceback):
    return lambda gradients: write_marker(node.name(), traceback)


def forward(inputs):
    hidden = checkpoint(model, inputs, use_reentrant=False) if args.checkpoint else model(inputs)
    return Doubled.apply(hidden) if args.custom else hidden


for step in range(2):
    inputs, labels = batch(model, device)
    inputs.requires_grad_()
    with torch.autograd.set_detect_anomaly(True, check_nan=False), torch.autocast("cuda", enabled=args.amp):
        loss = criterion(forward(inputs), labels)
        if args.double:
            [slope] = torch.autograd.grad(loss, inputs, create_graph=True)
            loss = loss + slope.square().sum()
        for node in nodes_of(loss.grad_fn):
            node.register_prehook(mark(node, traceback_of(node)))
    loss.backward()
    write_marker(None, [])
output.close()

if args.fail:
    a = torch.ones(4, device=device, requires_grad=True)
    b = a.exp()
    b.add_(1)
    try:
        b.sum().backward()
    except RuntimeError as error:
        print(str(error).split(":")[0], flush=True)
    # The engine works after the failure.
    torch.ones(4, device=device, requires_grad=True).exp().sum().backward()
print("trained", flush=True)
# The backward threads still release Python objects of this mode. PyTorch aborts if the interpreter
# ends before that.
time.sleep(0.5)
