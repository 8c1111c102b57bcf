"""Averaged weights with a bug: `update()` appends the new shadow instead of replacing the old.

kind: leak
steps: 50 150
"""

import probe
import torch
from torch import nn


class ShadowWeights:
    def __init__(self, model, decay=0.999):
        self.decay = decay
        self.shadows = [[parameter.detach().clone() for parameter in model.parameters()]]

    @torch.no_grad()
    def update(self, model):
        pairs = zip(self.shadows[-1], model.parameters())
        shadows = [shadow.lerp(parameter, 1 - self.decay) for shadow, parameter in pairs]  # leak
        self.shadows.append(shadows)


def main():
    model = nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 64)).cuda()
    shadow = ShadowWeights(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(probe.steps(50)):
        x = torch.randn(128, 64, device="cuda")
        noise = torch.randn_like(x)
        loss = (model(x * 0.7 + noise * 0.7) - noise).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shadow.update(model)
        probe.step_end()


main()
