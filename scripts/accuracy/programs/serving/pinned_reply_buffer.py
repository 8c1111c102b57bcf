"""Replies go through one pinned buffer, which is doubled for a larger reply: a few times in all.

kind: healthy
steps: 120 400
unit: request
"""

import random

import probe
import torch
from torch import nn


class ReplyBuffer:
    def __init__(self):
        self.buffer = torch.empty(1024, pin_memory=True)

    def fetch(self, tensor):
        while self.buffer.numel() < tensor.numel():
            self.buffer = torch.empty(2 * self.buffer.numel(), pin_memory=True)
        view = self.buffer[:tensor.numel()].view(tensor.shape)
        view.copy_(tensor, non_blocking=True)
        torch.cuda.synchronize()
        return view.sum().item()


@torch.inference_mode()
def serve(requests):
    rng, model, replies = random.Random(31), nn.Linear(128, 256).cuda(), ReplyBuffer()
    for _ in range(requests):
        rows = min(400, int(rng.paretovariate(1.2) * 4))
        replies.fetch(model(torch.randn(rows, 128).cuda()))
        probe.step_end()


serve(probe.steps(120))
