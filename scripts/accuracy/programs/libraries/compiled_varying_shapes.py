"""`torch.compile` (eager backend) over shapes that vary: recompilations in the first steps.

kind: healthy
steps: 60
"""

import random

import probe
import torch
from torch import nn


class Swiglu(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        gate, value = self.up(x).chunk(2, -1)
        return x + self.down(nn.functional.silu(gate) * value)


@torch.compile(backend="eager", dynamic=True)
def loss_of(model, x):
    return (model(x) - x).square().mean()


rng, model = random.Random(3), Swiglu(96).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(probe.steps(60)):
    x = torch.randn(rng.randint(4, 64), rng.randint(10, 80), 96, device="cuda")
    optimizer.zero_grad()
    loss_of(model, x).backward()
    optimizer.step()
    del x
    probe.step_end()
