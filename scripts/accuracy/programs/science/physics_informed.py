"""A PINN whose residuals, with second derivatives, are kept per step for a convergence plot.

kind: leak
steps: 40 120
"""

import probe
import torch
from torch import nn


class Field(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, points):
        return self.net(points)


def derivative(values, points):
    return torch.autograd.grad(values.sum(), points, create_graph=True)[0]


def residual(field, points):
    first = derivative(field(points), points)
    second = derivative(first[:, 0], points)
    return second[:, 0] + first[:, 1]


class History(dict):
    def record(self, **values):
        for name, value in values.items():
            self.setdefault(name, []).append(value)


field, history = Field().cuda(), History()
optimizer = torch.optim.Adam(field.parameters())
for step in range(probe.steps(40)):
    points = torch.rand(2000, 2, device="cuda", requires_grad=True)  # leak
    error = residual(field, points)
    optimizer.zero_grad()
    error.square().mean().backward()
    optimizer.step()
    history.record(residual=error.detach().abs(), points=points.detach())  # leak-or
    probe.step_end()
