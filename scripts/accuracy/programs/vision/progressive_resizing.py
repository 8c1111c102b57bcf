"""Images grow from 64 to 192 pixels in four stages, and the last batch stays in a variable.

kind: growing
steps: 64 200
"""

import probe
import torch
from torch import nn

STAGES = [64, 96, 128, 192]


def block(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU(), nn.AvgPool2d(2))


def main(steps):
    model = nn.Sequential(block(3, 16), block(16, 32), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(32, 5)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        size = STAGES[step * len(STAGES) // steps]
        images = torch.rand(8, 3, size, size).cuda()
        logits = model(images)
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits, torch.zeros(8, dtype=torch.long).cuda()).backward()
        optimizer.step()
        probe.step_end()


main(probe.steps(64))
