"""One line keeps 4 MiB a step and frees a temporary of 4 MiB, until memory runs out.

kind: leak
steps: 150
memory: 512M
"""

import probe
import torch
from torch import nn


class Replay:
    def __init__(self):
        self.images = []

    def add(self, image):
        self.images.append(image.clamp(0, 1) * 255)  # leak


def main():
    replay, model = Replay(), nn.Conv2d(1, 1, 3, padding=1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(probe.steps(150)):
        image = torch.rand(1, 1, 1024, 1024, device="cuda")
        optimizer.zero_grad()
        model(image[..., :256, :256]).mean().backward()
        optimizer.step()
        replay.add(image)
        probe.step_end()


main()
