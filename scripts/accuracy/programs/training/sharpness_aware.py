"""SAM: two passes a step, and the weights are saved and restored around the first.

kind: healthy
steps: 40 120
"""

import probe
import torch
from torch import nn


class SAM(torch.optim.Optimizer):
    def __init__(self, parameters, base, rho=0.05, **options):
        super().__init__(parameters, {"rho": rho, **options})
        self.base = base(self.param_groups, **options)

    @torch.no_grad()
    def climb(self):
        norm = torch.stack([p.grad.norm() for group in self.param_groups for p in group["params"]]).norm()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.detach().clone()
                p.add_(p.grad * (group["rho"] / (norm + 1e-12)))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(self.state[p]["old"])
        self.base.step()


model = nn.Sequential(nn.Linear(200, 400), nn.SiLU(), nn.Linear(400, 200)).cuda()
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
for step in range(probe.steps(40)):
    x = torch.randn(64, 200, device="cuda")
    for advance in (optimizer.climb, optimizer.step):
        nn.functional.mse_loss(model(x), x).backward()
        advance()
        optimizer.zero_grad()
    probe.step_end()
