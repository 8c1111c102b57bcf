"""Copies of the model are made twice, at fixed points of the run: a teacher and a reference.

kind: healthy
steps: 60 180
check: no
"""

import copy

import probe
import torch
from torch import nn


def main(steps):
    student = nn.Sequential(*(nn.Linear(400, 400) for _ in range(4))).cuda()
    optimizer = torch.optim.AdamW(student.parameters())
    references = {}
    for step in range(steps):
        if step in (steps // 2, steps * 4 // 5):
            references[step] = copy.deepcopy(student).eval()
        x = torch.randn(32, 400, device="cuda")
        out = student(x)
        loss = out.square().mean()
        for reference in references.values():
            with torch.no_grad():
                wanted = reference(x)
            loss = loss + (out - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        probe.step_end()


main(probe.steps(60))
