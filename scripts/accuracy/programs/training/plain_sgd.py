"""The smallest training: SGD without momentum, so the optimizer allocates nothing.

kind: healthy
steps: 40 150
"""

import probe
import torch
from torch import nn

model = nn.Linear(1024, 10).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for step in range(probe.steps(40)):
    x, y = torch.randn(256, 1024, device="cuda"), torch.zeros(256, dtype=torch.long, device="cuda")
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    probe.step_end()
