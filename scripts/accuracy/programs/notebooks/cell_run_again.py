"""The cell that appends a model's output is run again and again, with a new file name each time.

kind: leak
steps: 60 150
unit: request
rate: 524288
"""

import probe
from notebook_kernel import Kernel

SETUP = """\
import torch
from torch import nn
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1024)).cuda()
outputs = []
"""

AGAIN = """\
# How stable is the output?
import time
began = time.perf_counter()
x = torch.randn(128, 64, device="cuda")
with torch.no_grad():
    y = model(x)  # leak
outputs.append(y)
print(f"{len(outputs)} outputs, {time.perf_counter() - began:.3f} s")
"""

kernel = Kernel("ipython")
kernel.execute([SETUP])
kernel.execute((AGAIN for _ in range(probe.steps(60))), probe.step_end)
