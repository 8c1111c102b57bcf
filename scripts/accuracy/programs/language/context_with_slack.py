"""A context of 12 MB grows by 96 KiB a turn, in blocks that have up to 1 MiB of slack.

kind: growing
steps: 60 180
unit: request
"""

import probe
import torch
from torch import nn


class Conversation:
    def __init__(self, width=256):
        self.mix = nn.Linear(width, width).cuda()
        self.context = torch.randn(12_000, width, device="cuda")

    @torch.inference_mode()
    def turn(self, tokens=96):
        question = torch.randn(tokens, self.context.shape[1], device="cuda")
        weights = (self.mix(question) @ self.context.T).softmax(-1)
        self.context = torch.cat([self.context, weights @ self.context])


conversation = Conversation()
for _ in range(probe.steps(60)):
    conversation.turn()
    probe.step_end()
