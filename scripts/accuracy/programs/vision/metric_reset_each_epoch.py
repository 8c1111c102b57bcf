"""The same kind of metric, reset at each epoch's end, with validation after every epoch.

kind: healthy
steps: 90 240
"""

import probe
import torch
from torch import nn


class MeanAveragePrecision:
    def __init__(self):
        self.boxes = []

    def update(self, boxes):
        self.boxes.append({"boxes": boxes, "scores": boxes[:, 0].sigmoid()})

    def compute_and_reset(self):
        value = torch.cat([one["scores"] for one in self.boxes]).sort().values.mean()
        self.boxes = []
        return value.cpu()


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Conv2d(3, 24, 7, stride=4)
        self.boxes = nn.Conv2d(24, 5, 1)

    def forward(self, images):
        return self.boxes(self.backbone(images).relu()).flatten(2).mT


def epochs(model, optimizer, metric, steps, length=15):
    for step in range(steps):
        out = model(torch.rand(2, 3, 128, 128, device="cuda"))
        optimizer.zero_grad()
        out.abs().mean().backward()
        optimizer.step()
        metric.update(out.detach()[0].clone())
        if step % length == length - 1:
            yield metric.compute_and_reset()
            with torch.no_grad():
                for _ in range(5):
                    metric.update(model(torch.rand(1, 3, 128, 128, device="cuda"))[0])
            yield metric.compute_and_reset()
        probe.step_end()


model, metric = Detector().cuda(), MeanAveragePrecision()
print(len(list(epochs(model, torch.optim.AdamW(model.parameters()), metric, probe.steps(90)))))
