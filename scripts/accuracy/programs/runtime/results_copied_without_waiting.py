"""Copies results with `.to("cpu", non_blocking=True)`, which pins them, and keeps them all.

kind: leak
steps: 60 200
unit: request
rate: 262144
"""

import probe
import torch
from torch import nn


class Collector:
    def __init__(self):
        self.rows = []

    def add(self, logits):
        row = logits.to("cpu", non_blocking=True)  # leak
        self.rows.append(row)
        probe.hold(row.nbytes)


@torch.inference_mode()
def main(batches):
    model, collector = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1024)).cuda(), Collector()
    for _ in range(batches):
        collector.add(model(torch.randn(64, 256, device="cuda")))
        probe.step_end()
    torch.cuda.synchronize()
    print(len(collector.rows))


main(probe.steps(60))
