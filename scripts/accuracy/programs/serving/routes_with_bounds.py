"""A server with five routes and no steps; each route keeps something, and all of it has a bound.

kind: healthy
steps: 200 600
unit: request
"""

import random
from collections import OrderedDict, deque

import probe
import torch
from torch import nn


class Server:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(192, 384), nn.GELU(), nn.Linear(384, 192)).cuda().requires_grad_(False)
        self.sessions, self.recent, self.templates, self.last_image = OrderedDict(), deque(maxlen=12), {}, None

    def chat(self, rng):
        user, length = rng.randrange(60), rng.randint(4, 64)
        self.sessions[user] = self.model(torch.randn(length, 192, device="cuda"))
        self.sessions.move_to_end(user)
        if len(self.sessions) > 16:
            self.sessions.popitem(last=False)

    def translate(self, rng):
        x = torch.randn(rng.randint(4, 128), 192, device="cuda")
        for _ in range(rng.randint(1, 5)):
            x = self.model(x)
        return x.argmax(-1).cpu()

    def moderate(self, rng):
        x = torch.randn(rng.randint(1, 20), 192, device="cuda")
        self.recent.append(self.model(x).mean(0))

    def fill_template(self, rng):
        name = rng.randrange(6)
        if name not in self.templates:
            self.templates[name] = self.model(torch.randn(32 + 8 * name, 192, device="cuda"))
        return torch.cat([self.templates[name], torch.randn(rng.randint(1, 30), 192, device="cuda")]).mean(0).cpu()

    def describe_image(self, rng):
        side = rng.choice([8, 12, 16])
        self.last_image = self.model(torch.randn(side * side, 192).cuda())


def main():
    rng, server = random.Random(42), Server()
    routes = [server.chat, server.translate, server.moderate, server.fill_template, server.describe_image]
    for _ in range(probe.steps(200)):
        rng.choice(routes)(rng)
        probe.step_end()


main()
