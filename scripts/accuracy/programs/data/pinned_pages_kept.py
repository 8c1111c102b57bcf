"""An uploader frees its pinned buffer; an archive takes it from PyTorch's cache and keeps it.

So the uploader's line makes all calls of the driver, and the archive's line keeps the memory.

kind: leak
steps: 60 200
rate: 262144
"""

import probe
import torch
from torch import nn


class Archive:
    """Copies predictions to the host, for a file that is written at the end."""

    def __init__(self):
        self.pages = []

    def store(self, predictions):
        page = torch.empty(128, 512, pin_memory=True)  # leak
        page.copy_(predictions, non_blocking=True)
        self.pages.append(page)
        probe.hold(page.nbytes)


def upload(batch):
    staging = torch.empty(128, 512, pin_memory=True)
    staging.copy_(batch)
    return staging.to("cuda", non_blocking=True)


def main():
    archive, model = Archive(), nn.Linear(512, 512).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(probe.steps(60)):
        predictions = model(upload(torch.zeros(128, 512)))
        optimizer.zero_grad()
        predictions.square().mean().backward()
        optimizer.step()
        torch.cuda.synchronize()
        archive.store(predictions.detach())
        probe.step_end()


main()
