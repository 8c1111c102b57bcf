"""A cell ends with an expression, so `Out` keeps its value: one more tensor with each run.

kind: leak
steps: 50 150
unit: request
rate: 256000
"""

import probe
from notebook_kernel import Kernel

SETUP = """\
import torch
model = torch.nn.Sequential(torch.nn.Embedding(500, 64), torch.nn.Flatten(), torch.nn.Linear(64 * 16, 1000))
model.cuda().requires_grad_(False)
"""

LOOK = """\
# What does the model say to the next batch?
tokens = torch.zeros(64, 16, dtype=torch.long, device="cuda")
logits = model(tokens)

logits.softmax(-1)  # leak
"""

kernel = Kernel("colab")
kernel.execute([SETUP])
kernel.execute((LOOK for _ in range(probe.steps(50))), probe.step_end)
