"""Uncertainty by dropout: one input on the GPU, many passes, and each prediction keeps its graph.

kind: leak
steps: 60 400
unit: request
"""

import probe
import torch
from torch import nn

model = nn.Sequential(
    nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 1)
).cuda()
x = torch.randn(256, 64, device="cuda")
predictions = []
for _ in range(probe.steps(60)):
    predictions.append(model(x))  # leak
    probe.step_end()
print(torch.stack(predictions).std(0).mean().item())
