"""Optimizes pixels with features taken by hooks; a new image every 20 steps.

kind: healthy
steps: 80 240
"""

import probe
import torch
from torch import nn


def gram(features):
    flat = features.flatten(2)
    return flat @ flat.mT / flat.shape[-1]


class Features:
    def __init__(self, layers):
        self.found = []
        self.handles = [layer.register_forward_hook(self) for layer in layers]

    def __call__(self, module, inputs, output):
        self.found.append(output)

    def take(self):
        found, self.found = self.found, []
        return found


network = nn.Sequential(*(nn.Conv2d(3 if index == 0 else 16, 16, 3, padding=1) for index in range(4))).cuda().requires_grad_(False)
features, steps = Features(network), probe.steps(80)
for picture in range(steps // 20):
    network(torch.rand(1, 3, 96, 96).cuda())
    style = [gram(one).detach() for one in features.take()]
    image = torch.rand(1, 3, 96, 96).cuda().requires_grad_()
    optimizer = torch.optim.Adam([image], lr=0.05)
    for _ in range(20):
        network(image)
        loss = sum((gram(one) - wanted).square().sum() for one, wanted in zip(features.take(), style))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        probe.step_end()
