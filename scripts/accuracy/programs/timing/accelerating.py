"""Each step keeps one more message than the step before: pairwise statistics of all history.

kind: leak
steps: 40 100
rate: varies
from: 0.5
"""

import probe
import torch
from torch import nn

embeddings, distances = [], {}


def compare(step, current):
    for earlier, other in enumerate(embeddings):
        distances[earlier, step] = (current - other).norm(dim=1)  # leak
    embeddings.append(current)


model = nn.Linear(64, 32).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(probe.steps(40)):
    out = model(torch.randn(512, 64, device="cuda"))
    optimizer.zero_grad()
    out.square().mean().backward()
    optimizer.step()
    compare(step, out.detach()[:, :1].clone())
    probe.step_end()
