"""Distillation: a frozen teacher, temperature, soft targets, and cosine learning rate.

kind: healthy
steps: 40 120
"""

import probe
import torch
import torch.nn.functional as F
from torch import nn


def encoder(width, depth):
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True, dropout=0.0)
    return nn.Sequential(nn.Embedding(800, width), nn.TransformerEncoder(layer, depth, enable_nested_tensor=False), nn.Linear(width, 800))


class Distiller:
    def __init__(self, steps, temperature=2.0):
        self.teacher, self.student = encoder(128, 3).cuda().eval(), encoder(64, 1).cuda()
        self.optimizer = torch.optim.AdamW(self.student.parameters())
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, steps)
        self.temperature = temperature

    def step(self, tokens):
        with torch.no_grad():
            soft = F.softmax(self.teacher(tokens) / self.temperature, -1)
        hard = F.log_softmax(self.student(tokens) / self.temperature, -1)
        self.optimizer.zero_grad()
        F.kl_div(hard, soft, reduction="batchmean").backward()
        self.optimizer.step()
        self.schedule.step()


steps = probe.steps(40)
distiller = Distiller(steps)
for _ in range(steps):
    distiller.step(torch.zeros(4, 48, dtype=torch.long, device="cuda"))
    probe.step_end()
