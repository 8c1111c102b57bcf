"""Training and evaluation under NVTX ranges; the evaluation keeps each round's worst batch.

kind: leak
steps: 80 240
every: 8
"""

import probe
import torch
from torch import nn


def ranged(name):
    """A decorator that wraps calls in a range, as many code bases have."""

    def decorate(function):
        def wrapper(*args, **options):
            torch.cuda.nvtx.range_push(name)
            try:
                return function(*args, **options)
            finally:
                torch.cuda.nvtx.range_pop()

        return wrapper

    return decorate


class Experiment:
    worst = []

    def __init__(self):
        self.model = nn.Linear(500, 20).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters())

    @ranged("train")
    def train(self):
        self.optimizer.zero_grad()
        self.model(torch.randn(100, 500, device="cuda")).square().mean().backward()
        self.optimizer.step()

    @ranged("evaluate")
    @torch.no_grad()
    def evaluate(self):
        batches = [torch.randn(200, 500, device="cuda") for _ in range(4)]  # leak
        losses = [self.model(batch).square().mean().item() for batch in batches]
        self.worst.append(batches[losses.index(max(losses))])


experiment = Experiment()
for step in range(probe.steps(80)):
    experiment.train()
    if step % 8 == 7:
        experiment.evaluate()
    probe.step_end()
