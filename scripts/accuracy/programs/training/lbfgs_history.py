"""LBFGS fills its history of directions in the first steps and then replaces the oldest.

kind: healthy
steps: 40 100
"""

import probe
import torch

target = torch.randn(64, 64, device="cuda")
left = torch.randn(64, 8, device="cuda", requires_grad=True)
right = torch.randn(8, 64, device="cuda", requires_grad=True)
optimizer = torch.optim.LBFGS([left, right], max_iter=4, history_size=6)


def closure():
    optimizer.zero_grad()
    loss = (left @ right - target).square().mean()
    loss.backward()
    return loss


for step in range(probe.steps(40)):
    optimizer.step(closure)
    probe.step_end()
