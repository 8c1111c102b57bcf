"""Logs 14 diagnostics each step as tensors on the GPU: no line keeps more than 2 KiB a step.

kind: leak
steps: 40 120
rate: 28672
"""

from collections import defaultdict

import probe
import torch
from torch import nn

log = defaultdict(list)


def log_batch(x):
    log["input mean"].append(x.mean(0))  # leak
    log["input spread"].append(x.std(0))  # leak
    log["input largest"].append(x.amax(0))  # leak


def log_outputs(out):
    log["output mean"].append(out.mean(0))  # leak
    log["output largest"].append(out.amax(0))  # leak
    log["output smallest"].append(out.amin(0))  # leak


def log_weights(model):
    log["first norm"].append(model[0].weight.norm(dim=1))  # leak
    log["first mean"].append(model[0].weight.mean(1))  # leak
    log["last norm"].append(model[2].weight.norm(dim=1))  # leak
    log["last mean"].append(model[2].weight.mean(1))  # leak


def log_gradients(model):
    log["first gradient"].append(model[0].weight.grad.norm(dim=1))  # leak
    log["first bias gradient"].append(model[0].bias.grad.clone())  # leak
    log["last gradient"].append(model[2].weight.grad.norm(dim=1))  # leak
    log["last bias gradient"].append(model[2].bias.grad.clone())  # leak


@torch.no_grad()
def diagnose(model, x, out):
    log_batch(x)
    log_outputs(out)
    log_weights(model)
    log_gradients(model)


def main():
    model = nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 512)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(probe.steps(40)):
        x = torch.randn(64, 512, device="cuda")
        out = model(x)
        optimizer.zero_grad()
        out.square().mean().backward()
        diagnose(model, x, out)  # leak-or
        optimizer.step()
        probe.step_end()


main()
