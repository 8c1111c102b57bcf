"""`itertools.tee` over a stream of batches: the second iterator is for a report at the end.

kind: leak
steps: 50 160
"""

import itertools

import probe
import torch
from torch import nn


def batches():
    while True:
        x = torch.randn(96, 300, device="cuda")  # leak
        yield {"x": x, "y": torch.zeros(96, 3, device="cuda")}


def fit(model, stream, steps):
    optimizer = torch.optim.RAdam(model.parameters())
    for batch in itertools.islice(stream, steps):
        loss = nn.functional.binary_cross_entropy_with_logits(model(batch["x"]), batch["y"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        probe.step_end()


def main():
    training, report = itertools.tee(batches())
    fit(nn.Linear(300, 3).cuda(), training, probe.steps(50))
    print(sorted(next(report)))


main()
