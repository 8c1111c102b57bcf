"""Sentence saliency for a long document: a pass keeps 400 states and their graph until `grad`.

kind: healthy
steps: 1 4
unit: request
"""

import probe
import torch
from torch import nn


class Reader(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.cell, self.width = nn.GRUCell(96, width), width
        self.attend, self.score = nn.Linear(width, 1), nn.Linear(width, 1)

    def forward(self, document):
        state, states = torch.zeros(document.shape[1], self.width, device="cuda"), []
        for sentence in document:
            state = self.cell(sentence, state)
            states.append(state)
        memory = torch.stack(states)
        return self.score((self.attend(memory).softmax(0) * memory).sum(0))


def saliency(reader, document):
    document.requires_grad_()
    grad, = torch.autograd.grad(reader(document).sum(), document)
    return grad.norm(dim=-1).cpu()


reader = Reader().cuda()
for _ in range(probe.steps(1)):
    print(saliency(reader, torch.randn(400, 16, 96, device="cuda")).shape)
    probe.step_end()
