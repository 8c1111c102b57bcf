"""One line makes three temporaries and, of the same size, a tensor that it appends to a list.

kind: leak
steps: 40 120
rate: 262144
"""

import probe
import torch
from torch import nn


class Whitened:
    """Collects features for a covariance that the end of training needs."""

    def __init__(self):
        self.rows = []

    @torch.no_grad()
    def add(self, features):
        self.rows.append(((features - features.mean(0)).abs() + 1e-6).sqrt())  # leak


whitened = Whitened()
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(probe.steps(40)):
    features = model(torch.randn(256, 64, device="cuda"))
    optimizer.zero_grad()
    features.square().mean().backward()
    optimizer.step()
    whitened.add(features)
    probe.step_end()
