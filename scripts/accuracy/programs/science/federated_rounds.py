"""Federated averaging: each round, client models are created, trained and averaged.

kind: healthy
steps: 80 240
"""

import copy
import random

import probe
import torch
from torch import nn


class Client:
    def __init__(self, server_model):
        self.model = copy.deepcopy(server_model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def train(self, steps):
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(torch.randn(16, 100, device="cuda")).logsumexp(1).mean().backward()
            self.optimizer.step()
            probe.step_end()
        return {name: value.clone() for name, value in self.model.state_dict().items()}


def aggregate(updates):
    return {name: torch.stack([update[name] for update in updates]).mean(0) for name in updates[0]}


def main():
    rng, left = random.Random(5), probe.steps(80)
    server = nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 10)).cuda()
    while left:
        updates = []
        for _ in range(rng.randint(2, 4)):
            count = min(left, rng.randint(1, 5))
            if count:
                updates.append(Client(server).train(count))
                left -= count
        server.load_state_dict(aggregate(updates))


main()
