"""A worker thread takes jobs of four kinds from a queue; previews stay in a cache by job number.

kind: leak
steps: 150 450
unit: request
every: 3
"""

import queue
import random
import threading

import probe
import torch
from torch import nn


class Worker(threading.Thread):
    def __init__(self):
        super().__init__()
        self.jobs, self.previews = queue.Queue(maxsize=8), {}
        self.filter = nn.Conv2d(3, 3, 5, padding=2).cuda().requires_grad_(False)

    def run(self):
        while (job := self.jobs.get()) is not None:
            number, kind, side = job
            getattr(self, kind)(number, torch.rand(1, 3, side, side).cuda())
            probe.step_end()

    def blur(self, number, image):
        for _ in range(1 + number % 4):
            image = self.filter(image)
        return image.cpu()

    def resize(self, number, image):
        return nn.functional.interpolate(image, scale_factor=0.5).cpu()

    def histogram(self, number, image):
        return image.flatten(2).sort(-1).values[..., ::64].cpu()

    def preview(self, number, image):
        if number not in self.previews:
            small = nn.functional.interpolate(self.filter(image), size=(96, 96))  # leak
            self.previews[number] = small
        return self.previews[number].cpu()


def main():
    rng, worker = random.Random(44), Worker()
    worker.start()
    for number in range(probe.steps(150)):
        kind = rng.choice(["blur", "resize", "histogram", "preview", "preview", "blur"])
        worker.jobs.put((number, kind, rng.randint(64, 256)))
    worker.jobs.put(None)
    worker.join()


main()
