"""`logging` with a MemoryHandler: records keep their arguments until 10,000 have come.

kind: leak
steps: 60 200
rate: 4096
"""

import logging
import logging.handlers

import probe
import torch
from torch import nn

log = logging.getLogger("train")
log.setLevel(logging.DEBUG)
log.propagate = False
log.addHandler(logging.handlers.MemoryHandler(10_000, flushLevel=logging.ERROR, target=logging.StreamHandler()))

model = nn.Linear(128, 1000).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for step in range(probe.steps(60)):
    logits = model(torch.randn(64, 128, device="cuda"))
    loss = nn.functional.cross_entropy(logits, torch.zeros(64, dtype=torch.long, device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    # Formatted only when the handler writes it.
    log.debug("step %d: mean logits %s", step, logits.detach().mean(0))  # leak
    probe.step_end()
