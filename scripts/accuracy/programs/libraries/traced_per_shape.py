"""Exports a function by `torch.jit.trace` per input shape; each trace holds its own constants.

kind: leak
steps: 40
unit: request
limit: blocks get larger with each request, and the last ones are not settled yet
"""

import warnings

import probe
import torch
from torch import nn

warnings.filterwarnings("ignore")


class Positional(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.project = nn.Linear(width, width)

    def forward(self, x):
        angles = torch.arange(x.shape[0]).float()[:, None] * torch.arange(x.shape[1]).float()
        # A constant of the trace: `tolist()` leaves the traced graph.
        table = torch.tensor(angles.sin().tolist(), device="cuda")  # leak
        return self.project(x + table)


class Exporter:
    def __init__(self, model):
        self.model, self.traced = model, {}

    def __call__(self, x):
        if x.shape not in self.traced:
            self.traced[x.shape] = torch.jit.trace(self.model, x, check_trace=False)  # leak-or
        return self.traced[x.shape](x)


with torch.no_grad():
    exporter = Exporter(Positional().cuda().eval())
    for request in range(probe.steps(40)):
        exporter(torch.randn(20 + request, 128, device="cuda"))  # leak-or
        probe.step_end()
