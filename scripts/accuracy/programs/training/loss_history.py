"""Keeps each batch's loss to plot the curve later, without `.item()`. 512 bytes a step.

kind: leak
steps: 60 200
rate: 512
"""

import probe
import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train_losses = []

for step in range(probe.steps(60)):
    inputs = torch.randn(64, 128).cuda()
    labels = torch.randint(0, 10, (64,)).cuda()
    optimizer.zero_grad()
    loss = criterion(model(inputs), labels)  # leak
    loss.backward()
    optimizer.step()
    train_losses.append(loss)
    probe.step_end()
