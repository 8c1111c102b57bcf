"""The cell that makes and trains the model is run again; each run replaces the model of the last.

kind: healthy
steps: 20 60
unit: request
"""

import probe
from notebook_kernel import Kernel

SETUP = """\
import torch
from torch import nn
data = torch.randn(4096, 64).cuda()
losses = []
"""

TRAIN = """\
net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 64)).cuda()
optimizer = torch.optim.AdamW(net.parameters())
for batch in data.split(512):
    loss = (net(batch) - batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
losses.append(loss.item())
losses[-1]
"""

kernel = Kernel("ipython")
kernel.execute([SETUP])
kernel.execute((TRAIN for _ in range(probe.steps(20))), probe.step_end)
