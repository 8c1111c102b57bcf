"""A summary writer that is never flushed keeps every tenth step's images.

kind: leak
steps: 120 360
every: 10
"""

import probe
import torch
from torch import nn


class SummaryWriter:
    def __init__(self, flush_every=1_000_000):
        self.pending, self.flush_every = [], flush_every

    def add_images(self, tag, images, step):
        self.pending.append((tag, images, step))
        if len(self.pending) >= self.flush_every:
            self.flush()

    def flush(self):
        for _, images, _ in self.pending:
            images.cpu()
        self.pending.clear()


def to_grid(images):
    framed = nn.functional.pad(images, (1, 1, 1, 1))
    return framed.permute(1, 2, 0, 3).flatten(2).contiguous()  # leak


def main():
    writer = SummaryWriter()
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(probe.steps(120)):
        images = torch.rand(8, 3, 48, 48, device="cuda")
        output = model(images)
        optimizer.zero_grad()
        nn.functional.l1_loss(output, images).backward()
        optimizer.step()
        if step % 10 == 0:
            writer.add_images("reconstruction", to_grid(output.detach()), step)
        probe.step_end()


main()
