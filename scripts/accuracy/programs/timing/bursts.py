"""Every 20 steps a report keeps the outputs of five batches; nothing in between.

kind: leak
steps: 160 400
every: 20
"""

import probe
import torch
from torch import nn

reports = {}


@torch.no_grad()
def report(model, step):
    reports[step] = [model(torch.randn(128, 32, device="cuda")) for _ in range(5)]  # leak


def main():
    model = nn.Sequential(nn.Linear(32, 200), nn.Hardswish(), nn.Linear(200, 400)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(probe.steps(160)):
        model(torch.randn(64, 32, device="cuda")).var().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 10:
            report(model, step)
        probe.step_end()


main()
