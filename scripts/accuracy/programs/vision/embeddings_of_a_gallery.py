"""Collects the embeddings of a gallery in a dictionary by name, to match queries later.

kind: leak
steps: 80 240
unit: request
rate: 16384
"""

import probe
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Faces(IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        for number in range(self.count):
            yield f"person {number}", torch.rand(3, 24, 24)


@torch.no_grad()
def enroll(model, loader):
    gallery = {}
    for names, images in loader:
        for name, embedding in zip(names, model(images.cuda())):  # leak
            gallery[name] = embedding
        probe.step_end()
    return gallery


def main():
    model = nn.Sequential(nn.Flatten(), nn.Linear(1728, 512), nn.LayerNorm(512)).cuda().eval()
    gallery = enroll(model, DataLoader(Faces(8 * probe.steps(80)), batch_size=8))
    print(len(gallery))


main()
