"""A training cell is edited and run for each learning rate; the predictions of all runs are kept.

The cell's text changes with the rate, so ipykernel gives each run a file name of its own.

kind: leak
steps: 24 72
unit: request
rate: 524288
"""

import probe
from notebook_kernel import Kernel

SETUP = """\
import torch
from torch import nn
validation = torch.randn(2048, 128).cuda()
predictions = {}
"""

TRAIN = """\
rate = RATE

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()
optimizer = torch.optim.Adam(net.parameters(), lr=rate)
for step in range(4):
    batch = torch.randn(256, 128, device="cuda")
    loss = net(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

with torch.no_grad():
    predictions[rate] = net(validation)  # leak
"""

kernel = Kernel("ipykernel")
kernel.execute([SETUP])
kernel.execute((TRAIN.replace("RATE", f"{0.001 * (1 + number):.3f}") for number in range(probe.steps(24))), probe.step_end)
