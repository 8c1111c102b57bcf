"""Generates with `torch.cat([history, new])` as one growing tensor, without a limit on the context.

kind: growing
steps: 120 400
unit: request
"""

import probe
import torch
from torch import nn


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(256, 256)

    def forward(self, context):
        weights = (self.project(context[-1:]) @ context.T).softmax(-1)
        return weights @ context


@torch.no_grad()
def main(tokens):
    generator = Generator().cuda()
    context = torch.randn(16, 256, device="cuda")
    for _ in range(tokens):
        context = torch.cat([context, generator(context)])
        probe.step_end()


main(probe.steps(120))
