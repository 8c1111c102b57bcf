"""Programs with an atypical peak. usage: atypical_peaks.py WAY --truth FILE

  serve       inference, without gradients
  functional  training without modules: the parameters are plain tensors
  average     training that keeps a copy of the model, and a copy of its values
  stopped     training that ends at its peak, inside a forward pass, as if killed
  checkpoint  layers recomputed in the backward pass

The truth is [category, address, bytes] of tensors that live from before the peak to the end.
"""

import argparse
import copy
import json
import os

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from models import Mlp, batch

parser = argparse.ArgumentParser()
parser.add_argument("way")
parser.add_argument("--truth", required=True)
args = parser.parse_args()
device = torch.device("cuda")
criterion = nn.CrossEntropyLoss()


def write(**kinds):
    results = [[kind, tensor.untyped_storage().data_ptr(), tensor.nbytes] for kind, all in kinds.items() for tensor in all]
    with open(args.truth, "w", encoding="utf-8") as file:
        json.dump(results, file)


def large_batch(model):
    return [part.repeat(64, *[1] * (part.dim() - 1)) for part in batch(model, device)]


def serve():
    model = Mlp().to(device).eval()
    with torch.inference_mode():
        for _ in range(20):
            requests, _ = batch(model, device)
            answers = model(requests)
            answers.softmax(-1).cpu()
    write(parameters=list(model.parameters()))


def functional():
    first = torch.zeros(256, 512, device=device, requires_grad=True)
    second = torch.zeros(512, 300, device=device, requires_grad=True)
    dataset = torch.zeros(64, 256, device=device)
    optimizer = torch.optim.Adam([first, second])
    for _ in range(6):
        loss = ((dataset @ first).relu() @ second).square().mean()
        loss.backward()
        optimizer.step()
        spike = torch.empty(32 << 20, device=device)
        del spike
        optimizer.zero_grad()
    write(parameters=[first, second], dataset=[dataset])


def training(model, optimizer, forward=None, batch_of=None):
    for step in range(7):
        inputs, labels = batch_of(step) if batch_of else batch(model, device)
        criterion((forward or model)(inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad()


def average():
    model = Mlp().to(device)
    averaged = copy.deepcopy(model)
    values = {name: value.clone() for name, value in model.state_dict().items()}
    training(model, torch.optim.Adam(model.parameters()))
    write(parameters=list(model.parameters()), copies=list(averaged.parameters()), values=list(values.values()))


def stopped():
    model = Mlp().to(device)
    optimizer = torch.optim.Adam(model.parameters())

    def stop(module, inputs, output):
        if len(output) == 64 * model.input_shape[0]:
            write(parameters=list(model.parameters()))
            os.kill(os.getpid(), 9)

    model[8].register_forward_hook(stop)
    training(model, optimizer, batch_of=lambda step: large_batch(model) if step == 6 else batch(model, device))


def checkpointed():
    model = Mlp().to(device)
    layers = list(model)

    def forward(x):
        for first in range(0, 12, 4):
            x = checkpoint(nn.Sequential(*layers[first : first + 4]), x, use_reentrant=False)
        return layers[12](x)

    training(model, torch.optim.SGD(model.parameters(), lr=0.1), forward, lambda step: large_batch(model))
    write(parameters=list(model.parameters()))


{"serve": serve, "functional": functional, "average": average, "stopped": stopped, "checkpoint": checkpointed}[args.way]()
