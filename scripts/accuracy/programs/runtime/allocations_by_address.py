"""A custom kernel's workspaces by `caching_allocator_alloc`, of which the error path frees none.

kind: leak
steps: 80 240
every: 4
"""

import probe
import torch
from torch import nn


class Kernel:
    """Asks PyTorch's allocator for raw memory, as extensions do."""

    def run(self, size, fails):
        workspace = torch.cuda.caching_allocator_alloc(size)  # leak
        if fails:
            return None
        torch.cuda.caching_allocator_delete(workspace)
        return size


kernel, model = Kernel(), nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(probe.steps(80)):
    kernel.run(600_000, fails=step % 4 == 1)
    optimizer.zero_grad()
    model(torch.randn(32, 64, device="cuda")).mean().backward()
    optimizer.step()
    probe.step_end()
