"""A training that names the purpose of its blocks, in the ways that this PyTorch has.

usage: labels.py SNAPSHOT.pickle PROFILED.pickle [--anomaly]

The snapshot has `user_metadata` (PyTorch 2.10 and later), annotated tensors (2.15) and ranges of
`record_function`. With --anomaly, autograd's events have the frames of their forward call. The
profiled file is what `torch.cuda._memory_viz.profile_plot` puts into its page: the categories of
PyTorch's memory profiler.
"""

import argparse
import base64
import inspect
import re

import torch
from torch import nn
from torch.cuda import _memory_viz, memory

parser = argparse.ArgumentParser()
parser.add_argument("snapshot")
parser.add_argument("profiled")
parser.add_argument("--anomaly", action="store_true")
args = parser.parse_args()

MIB = 1 << 20


def label(text):
    if hasattr(memory, "_set_memory_metadata"):
        memory._set_memory_metadata(text)


def annotate(tensor, text):
    if hasattr(memory, "_annotate_tensor"):
        memory._annotate_tensor(tensor, text)


def forward(model, inputs):
    hidden = model[:3](inputs)
    return model[3:](hidden).square().sum()


def build():
    label("parameters")
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 64)).cuda()
    label("")
    return model, torch.optim.Adam(model.parameters())


def train(model, optimizer, steps):
    for step in range(steps):
        with torch.profiler.record_function("training step"):
            label({"step": step})
            inputs = torch.randn(256, 512, device="cuda")
            annotate(inputs, "input")
            label("activation")
            loss = forward(model, inputs)
            label("")
            loss.backward()
            for parameter in model.parameters():
                annotate(parameter.grad, "gradient")
            label("optimizer_state")
            optimizer.step()
            label("")
            # Not what its label says: the block lives on after the step.
            if step == 1:
                label("temporary")
                model.kept = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
                label("cache \x1b[31mof\nkeys")
                model.cache = torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
                label("")
            optimizer.zero_grad()


record = memory._record_memory_history
options = {"global_record_annotations": True, "compile_context": True}
known = inspect.signature(memory._record_memory_history_impl).parameters if hasattr(memory, "_record_memory_history_impl") else ()
record(max_entries=1_000_000, stacks="python", **{name: value for name, value in options.items() if name in known})
torch.autograd.set_detect_anomaly(args.anomaly)
model, optimizer = build()
train(model, optimizer, 5)
memory._dump_snapshot(args.snapshot)

record(enabled=None)
with torch.profiler.profile(record_shapes=True, profile_memory=True, with_stack=True) as profile:
    model, optimizer = build()
    train(model, optimizer, 3)
page = _memory_viz.profile_plot(profile)
with open(args.profiled + ".html", "w") as file:
    file.write(page)
with open(args.profiled, "wb") as file:
    file.write(base64.b64decode(re.search(r'"base64": "([^"]*)"', page)[1]))
