"""Large images in overlapping tiles, added into a canvas that is moved to the host when complete.

kind: healthy
steps: 30 100
unit: request
"""

import random

import probe
import torch
from torch import nn


def tiles(height, width, size=96, step=64):
    for top in range(0, height - size + 1, step):
        for left in range(0, width - size + 1, step):
            yield slice(top, top + size), slice(left, left + size)


class Segmenter:
    def __init__(self):
        self.model = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 4, 1)).cuda().eval()

    @torch.inference_mode()
    def __call__(self, image):
        canvas = torch.zeros(4, *image.shape[1:], device="cuda")
        weight = torch.zeros(image.shape[1:], device="cuda")
        for rows, columns in tiles(*image.shape[1:]):
            patch = image[None, :, rows, columns].cuda()
            canvas[:, rows, columns] += self.model(patch + 0)[0]
            canvas[:, rows, columns] += self.model(patch.flip(-1))[0].flip(-1)
            weight[rows, columns] += 2
        return (canvas / weight.clamp(min=1)).argmax(0).cpu()


rng, segment = random.Random(3), Segmenter()
for image in range(probe.steps(30)):
    segment(torch.rand(3, rng.randint(200, 420), rng.randint(200, 420)))
    probe.step_end()
