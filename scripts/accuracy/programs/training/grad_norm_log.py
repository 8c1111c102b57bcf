"""Logs the norm of each parameter's gradient as a tensor: 512 bytes a parameter and step.

kind: leak
steps: 50 150
"""

from collections import defaultdict

import probe
import torch
from torch import nn

norms = defaultdict(list)


def log_gradients(model):
    for name, parameter in model.named_parameters():
        norms[name].append(parameter.grad.norm())  # leak


def main():
    steps = probe.steps(50)
    model = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        out = model(torch.randn(8, 16, 64, device="cuda"))
        out.mean().backward()
        log_gradients(model)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        probe.step_end()


if __name__ == "__main__":
    main()
