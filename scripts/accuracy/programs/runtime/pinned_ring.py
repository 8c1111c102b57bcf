"""Three pinned staging buffers used in turn, with events, and results copied back to pinned memory.

kind: healthy
steps: 60 200
"""

import probe
import torch
from torch import nn


class Staging:
    def __init__(self, count, *shape):
        self.slots = [(torch.empty(*shape, pin_memory=True), torch.cuda.Event()) for _ in range(count)]
        self.next = 0

    def upload(self, batch):
        buffer, event = self.slots[self.next]
        self.next = (self.next + 1) % len(self.slots)
        event.synchronize()
        buffer.copy_(batch)
        out = buffer.to("cuda", non_blocking=True)
        event.record()
        return out


staging, losses = Staging(3, 128, 256), torch.zeros(1000, pin_memory=True)
model = nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(probe.steps(60)):
    loss = model(staging.upload(torch.randn(128, 256))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses[step % 1000].copy_(loss.detach(), non_blocking=True)
    probe.step_end()
