"""Four micro-batches fit, and the first `optimizer.step()` runs out of memory: Adam's state is new.

Nothing leaks. A step of this program is a micro-batch.

kind: healthy
steps: 8
unit: request
memory: 1100M
"""

import probe
import torch
from torch import nn


def build(depth=24, width=2048):
    return nn.Sequential(*(nn.Linear(width, width, device="cuda") for _ in range(depth)))


def main(micro_batches, accumulate=4):
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for number in range(micro_batches):
        loss = model(torch.randn(8, 2048, device="cuda")).square().mean() / accumulate
        loss.backward()
        probe.step_end()
        if number % accumulate == accumulate - 1:
            optimizer.step()
            optimizer.zero_grad()


main(probe.steps(8))
