"""Four stages, each with a larger network that replaces the one before; flat within a stage.

kind: healthy
steps: 80 240
check: no
"""

import probe
import torch
from torch import nn


def train_stage(width, steps):
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 64)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        x = torch.randn(32, 64, device="cuda")
        optimizer.zero_grad()
        (model(x) - x).square().mean().backward()
        optimizer.step()
        probe.step_end()
    return model


def main():
    steps, final = probe.steps(80), None
    for stage in range(4):
        final = train_stage(256 * 2**stage, steps // 4)
    print(sum(parameter.numel() for parameter in final.parameters()))


main()
