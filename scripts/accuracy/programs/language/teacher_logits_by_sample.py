"""Caches the teacher's logits per sample: full after the first of four epochs, then only read.

kind: healthy
steps: 160 400
"""

import random

import probe
import torch
from torch import nn


def main():
    steps = probe.steps(160)
    rng, samples = random.Random(3), steps // 4
    teacher, student = nn.Linear(300, 2000).cuda(), nn.Linear(300, 2000).cuda()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    known = {}
    for epoch in range(4):
        for sample in rng.sample(range(samples), samples):
            x = torch.randn(8, 300, device="cuda")
            if sample not in known:
                with torch.no_grad():
                    known[sample] = teacher(x)
            loss = nn.functional.mse_loss(student(x), known[sample])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            probe.step_end()


main()
