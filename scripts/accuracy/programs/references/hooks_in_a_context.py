"""Registers hooks at each step in a context manager, which removes them and their activations.

kind: healthy
steps: 40 120
"""

import contextlib

import probe
import torch
from torch import nn


def remember(kept, name):
    def hook(module, inputs, output):
        kept[name] = output.detach().clone()

    return hook


@contextlib.contextmanager
def activations(model):
    kept, handles = {}, contextlib.ExitStack()
    with handles:
        for name, module in model.named_modules():
            if not list(module.children()):
                handles.callback(module.register_forward_hook(remember(kept, name)).remove)
        yield kept
    kept.clear()


model = nn.Sequential(*(layer for _ in range(5) for layer in (nn.Linear(256, 256), nn.ELU()))).cuda()
optimizer = torch.optim.Adam(model.parameters(), amsgrad=True)
for step in range(probe.steps(40)):
    with activations(model) as kept:
        model(torch.randn(128, 256, device="cuda")).pow(2).mean().backward()
        dead = [(value <= 0).float().mean() for value in kept.values()]
    optimizer.step()
    optimizer.zero_grad()
    probe.step_end()
