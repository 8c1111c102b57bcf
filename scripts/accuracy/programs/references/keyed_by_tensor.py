"""Memoizes by the tensor itself. Tensors hash by identity, so the cache never hits and only grows.

kind: leak
steps: 60 180
"""

import functools

import probe
import torch
from torch import nn


def memoize(function):
    known = {}

    @functools.wraps(function)
    def wrapper(*args):
        if args not in known:
            known[args] = function(*args)
        return known[args]

    return wrapper


@memoize
def similarity(left, right):
    return nn.functional.normalize(left, dim=1) @ nn.functional.normalize(right, dim=1).T  # leak


def main():
    project = nn.Linear(64, 8).cuda()
    optimizer = torch.optim.Adadelta(project.parameters())
    for _ in range(probe.steps(60)):
        batch = torch.randn(320, 64, device="cuda")
        with torch.no_grad():
            targets = similarity(batch[:, :4].clone(), batch[:, 4:8].clone())
        z = project(batch)
        optimizer.zero_grad()
        (z @ z.T - targets).square().mean().backward()
        optimizer.step()
        probe.step_end()


main()
