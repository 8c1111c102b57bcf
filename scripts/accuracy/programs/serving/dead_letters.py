"""A tenth of the requests fails; the error handler puts them aside with their inputs on the GPU.

kind: leak
steps: 200 600
unit: request
every: 10
limit: few events without a period: it is a possible leak
"""

import random

import probe
import torch
from torch import nn


class TooLong(ValueError):
    pass


class Endpoint:
    def __init__(self, limit):
        self.encoder = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32)).cuda()
        self.limit, self.dead_letters = limit, []

    def check(self, features):
        if features.shape[1] > self.limit:
            raise TooLong(features.shape[1])

    def handle(self, length):
        features = torch.randn(4, length, 32).to("cuda")  # leak
        try:
            self.check(features)
            return self.encoder(features).mean(1).tolist()
        except TooLong:
            # Meant for a retry that nothing starts.
            self.dead_letters.append(features)
            return None


def main():
    rng, endpoint = random.Random(11), Endpoint(200)
    for number in range(probe.steps(200)):
        with torch.no_grad():
            endpoint.handle(rng.randint(201, 256) if rng.random() < 0.1 else rng.randint(10, 200))
        probe.step_end()


main()
