"""A metric object collects predictions and targets over all epochs; nothing calls `reset()`.

kind: leak
steps: 60 180
"""

import probe
import torch
from torch import nn


class Metric(nn.Module):
    def __init__(self):
        super().__init__()
        self.reset()

    def reset(self):
        self.predictions, self.targets = [], []

    def update(self, predictions, targets):
        self.predictions.append(predictions.softmax(1))  # leak
        self.targets.append(targets)

    def compute(self):
        return (torch.cat(self.predictions).argmax(1) == torch.cat(self.targets)).float().mean()


class Lit:
    """A trainer in the style of Lightning."""

    def __init__(self):
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(768, 100)).cuda()
        self.metric = Metric()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def training_step(self, images, targets):
        logits = self.model(images)
        self.metric.update(logits.detach(), targets)
        return nn.functional.cross_entropy(logits, targets)

    def fit(self, steps, epoch=15):
        for step in range(steps):
            loss = self.training_step(torch.rand(32, 3, 16, 16).cuda(), torch.zeros(32, dtype=torch.long).cuda())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if step % epoch == epoch - 1:
                print("accuracy", self.metric.compute().item())
            probe.step_end()


Lit().fit(probe.steps(60))
