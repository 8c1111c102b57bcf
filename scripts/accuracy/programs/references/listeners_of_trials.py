"""A hyperparameter search: each trial's trainer subscribes to a global bus and never leaves it.

kind: leak
steps: 72 240
every: 8
"""

import probe
import torch
from torch import nn


class Bus:
    def __init__(self):
        self.listeners = {}

    def on(self, event, listener):
        self.listeners.setdefault(event, []).append(listener)

    def emit(self, event, *args):
        for listener in self.listeners.get(event, []):
            listener(*args)


bus = Bus()


class Trial:
    def __init__(self, rate):
        layers = nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 10)
        self.model = nn.Sequential(*layers).cuda()  # leak-or
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=rate)
        self.reports = 0
        bus.on("report", self.report)

    def report(self, value):
        self.reports += 1

    def step(self):
        loss = self.model(torch.randn(64, 128, device="cuda")).logsumexp(1).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()  # leak
        bus.emit("report", 0.0)


def search(steps):
    for step in range(steps):
        if step % 8 == 0:
            trial = Trial(rate=10 ** -(1 + step / steps))
        trial.step()
        probe.step_end()


search(probe.steps(72))
