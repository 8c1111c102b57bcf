"""A feature store bounded by bytes with a Zipf distribution of users; full in the first quarter.

kind: healthy
steps: 200 600
unit: request
"""

import random
from collections import OrderedDict

import probe
import torch


class FeatureStore:
    def __init__(self, budget):
        self.rows, self.budget, self.used = OrderedDict(), budget, 0

    def __getitem__(self, user):
        row = self.rows.pop(user, None)
        if row is None:
            row = self.load(user)
            self.used += row.nbytes
        self.rows[user] = row
        while self.used > self.budget:
            _, old = self.rows.popitem(last=False)
            self.used -= old.nbytes
        return row

    def load(self, user):
        return torch.randn(100 + user % 300, 16).to("cuda")


store, rng = FeatureStore(600_000), random.Random(5)
weights = torch.randn(16, 4, device="cuda")
for request in range(probe.steps(200)):
    users = {int(rng.paretovariate(0.7)) % 5000 for _ in range(2)}
    scores = [(store[user] @ weights).amax().item() for user in sorted(users)]
    probe.step_end()
