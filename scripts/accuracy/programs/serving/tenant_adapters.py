"""A LoRA server that loads a tenant's adapter at first use and never unloads one: 6 large events.

kind: leak
steps: 150 400
unit: request
every: 25
"""

import random

import probe
import torch
from torch import nn


class Adapter:
    """Weights of one tenant, as read from its file."""

    def __init__(self, layers, width, rank):
        shapes = [(width, rank), (rank, width)]
        self.pairs = [[torch.zeros(one).cuda() for one in shapes] for _ in range(layers)]  # leak


class AdapterServer:
    def __init__(self, layers=8, width=1024):
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers)).cuda()
        self.loaded = {}

    def adapter(self, tenant):
        if tenant not in self.loaded:
            self.loaded[tenant] = Adapter(len(self.layers), 1024, 64)
        return self.loaded[tenant]

    @torch.no_grad()
    def handle(self, tenant, x):
        for layer, (down, up) in zip(self.layers, self.adapter(tenant).pairs):
            x = torch.relu(layer(x) + x @ down @ up)
        return x


server, rng = AdapterServer(), random.Random(4)
for request in range(probe.steps(150)):
    newest = request // 25
    tenant = newest if request % 25 == 0 else rng.randint(0, newest)
    server.handle(tenant, torch.randn(rng.randint(1, 16), 1024, device="cuda"))
    probe.step_end()
