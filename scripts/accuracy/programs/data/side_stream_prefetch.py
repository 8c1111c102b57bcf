"""Double buffering: the next batch is copied on a side stream, with `record_stream`.

kind: healthy
steps: 50 160
"""

import probe
import torch
from torch import nn


class CudaPrefetcher:
    def __init__(self, loader):
        self.loader, self.stream = iter(loader), torch.cuda.Stream()
        self.preload()

    def preload(self):
        batch = next(self.loader, None)
        if batch is None:
            self.following = None
            return
        with torch.cuda.stream(self.stream):
            self.following = batch.cuda(non_blocking=True).half()

    def __iter__(self):
        while self.following is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            batch = self.following
            batch.record_stream(torch.cuda.current_stream())
            self.preload()
            yield batch


steps = probe.steps(50)
model = nn.Linear(512, 512).cuda().half()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for batch in CudaPrefetcher(torch.randn(32, 512).pin_memory() for _ in range(steps)):
    optimizer.zero_grad()
    model(batch).float().square().mean().backward()
    optimizer.step()
    probe.step_end()
