"""One loop serves four routes in any order; `/explain` keeps its attributions for an audit.

kind: leak
steps: 200 600
unit: request
every: 5
"""

import random

import probe
import torch
from torch import nn


class Api:
    def __init__(self, width=1024):
        self.encoder = nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 128)).cuda()
        self.head = nn.Linear(128, 10).cuda()
        self.audit = []
        self.routes = {"/embed": self.embed, "/classify": self.classify, "/similar": self.similar, "/explain": self.explain}

    @torch.no_grad()
    def embed(self, x):
        return self.encoder(x).cpu()

    @torch.no_grad()
    def classify(self, x):
        return self.head(self.encoder(x)).argmax(1).tolist()

    @torch.no_grad()
    def similar(self, x):
        vectors = nn.functional.normalize(self.encoder(x))
        return (vectors @ vectors.T).argsort(1).tolist()

    def explain(self, x):
        x.requires_grad_()
        score = self.head(self.encoder(x)).logsumexp(1).sum()
        gradient, = torch.autograd.grad(score, x)
        attribution = gradient * x.detach()  # leak
        self.audit.append(attribution)
        return attribution.abs().sum(0).argmax().item()


def traffic(rng, requests):
    for _ in range(requests):
        route = rng.choices(["/embed", "/classify", "/similar", "/explain"], weights=[6, 6, 3, 4])[0]
        yield route, rng.randint(1, 40)


def serve(api, requests):
    while (request := next(requests, None)) is not None:
        route, rows = request
        api.routes[route](torch.randn(rows, 1024).cuda())
        probe.step_end()


serve(Api(), traffic(random.Random(41), probe.steps(200)))
