"""Validates every 8 steps without `no_grad`; a meter's averages for the plot have graphs.

kind: leak
steps: 24 96
every: 8
"""

import probe
import torch
from torch import nn


class Meter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value, count):
        self.total = self.total + value * count
        self.count += count

    @property
    def average(self):
        return self.total / self.count


def loader(batches):
    for _ in range(batches):
        yield torch.rand(32, 3, 32, 32).cuda(), torch.zeros(32, dtype=torch.long).cuda()


def build():
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, 10)
    )


def validate(net, criterion):
    net.eval()
    meter = Meter()
    for images, labels in loader(4):
        outputs = net(images)  # leak
        meter.update(criterion(outputs, labels), len(images))
    net.train()
    return meter.average


def main(steps):
    net, criterion, history = build().cuda(), nn.CrossEntropyLoss(), {"training": [], "validation": []}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for step, (images, labels) in enumerate(loader(steps), 1):
        loss = criterion(net(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history["training"].append(loss.item())
        if step % 8 == 0:
            history["validation"].append(validate(net, criterion))
        probe.step_end()


main(probe.steps(24))
