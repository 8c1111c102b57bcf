"""A service handles ten kinds of events; the method of each keeps a little for the day.

kind: leak
steps: 80 300
unit: request
"""

import random

import probe
import torch


class Service:
    """Has a handler for each event; a report at midnight would empty `today`."""

    def __init__(self):
        self.weight = torch.randn(256, 256, device="cuda")
        self.today = []

    def click(self, x):
        self.today.append(x.mean(0))  # leak

    def view(self, x):
        self.today.append(x @ self.weight[:, :8])  # leak

    def purchase(self, x):
        self.today.append((x @ self.weight).relu())  # leak

    def search(self, x):
        scores = x @ self.weight
        self.today.append(scores[:, :32].softmax(1))  # leak

    def upload(self, x):
        self.today.append(x.half())  # leak

    def login(self, x):
        self.today.append(x.norm(dim=1))  # leak

    def share(self, x):
        self.today.append(torch.cat([x[:2], x[-2:]]))  # leak

    def rate(self, x):
        self.today.append(x.amax(1) - x.amin(1))  # leak

    def message(self, x):
        self.today.append(torch.nn.functional.normalize(x))  # leak

    def logout(self, x):
        self.today.append(x.std(0))  # leak


KINDS = ["click", "view", "purchase", "search", "upload", "login", "share", "rate", "message", "logout"]


@torch.no_grad()
def serve(service, rng, requests):
    for _ in range(requests):
        features = torch.randn(rng.randint(4, 64), 256).cuda()
        getattr(service, rng.choice(KINDS))(features)  # leak-or
        probe.step_end()


serve(Service(), random.Random(21), probe.steps(80))
