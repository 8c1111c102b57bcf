"""Trains the readout of a reservoir without `detach()`: its state chains the graphs of all chunks.

kind: leak
steps: 30 80
"""

import probe
import torch
from torch import nn


class Reservoir(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.cell = nn.GRUCell(16, width)

    def forward(self, signal, state):
        states = []
        for sample in signal.unbind(1):
            state = self.cell(sample, state)  # leak-or
            states.append(state)
        return torch.stack(states, 1), state


def train(steps):
    reservoir, readout = Reservoir().cuda(), nn.Linear(128, 1).cuda()
    optimizer = torch.optim.RMSprop(readout.parameters(), lr=1e-3)
    state = torch.zeros(32, 128, device="cuda")
    for step in range(steps):
        signal = torch.randn(32, 8, 16, device="cuda")
        states, state = reservoir(signal, state)  # leak
        loss = nn.functional.mse_loss(readout(states), signal[..., :1])
        for parameter, grad in zip(readout.parameters(), torch.autograd.grad(loss, list(readout.parameters()))):
            parameter.grad = grad
        optimizer.step()
        probe.step_end()


train(probe.steps(30))
