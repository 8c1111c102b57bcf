"""Keeps an output buffer for each request shape; image sizes are arbitrary, so hits are rare.

kind: leak
steps: 200 600
unit: request
"""

import functools
import random

import probe
import torch
from torch import nn


@functools.lru_cache(maxsize=None)
def output_buffer(channels, height, width):
    return torch.empty(1, channels, height, width, device="cuda")  # leak


class Upscaler(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 12, 3, padding=1)

    def forward(self, image):
        out = output_buffer(3, image.shape[2] * 2, image.shape[3] * 2)
        return out.copy_(nn.functional.pixel_shuffle(self.body(image), 2))


def main():
    rng, model = random.Random(12), Upscaler().cuda()
    with torch.inference_mode():
        for _ in range(probe.steps(200)):
            image = torch.rand(1, 3, rng.randint(60, 160), rng.randint(60, 160)).cuda()
            model(image).mul_(255).to(torch.uint8)
            probe.step_end()


if __name__ == "__main__":
    main()
