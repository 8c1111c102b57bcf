"""An agent calls one to five tools per request; a failed call leaves its context for a retry.

The retries are never made, and nothing empties their list.

kind: leak
steps: 160 480
unit: request
every: 5
"""

import random

import probe
import torch
from torch import nn


class ToolFailed(Exception):
    pass


class Agent:
    def __init__(self):
        self.model, self.documents = nn.Linear(256, 256).cuda(), torch.randn(5000, 256, device="cuda")
        self.to_retry = []

    def think(self, context):
        return torch.cat([context, torch.relu(self.model(context[-8:]))])

    def search(self, context, fails):
        hits = (context[-1:] @ self.documents.T).topk(4).indices[0]
        if fails:
            raise ToolFailed("search")
        return torch.cat([context, self.documents[hits]])

    def calculate(self, context, fails):
        if fails:
            raise ToolFailed("calculate")
        return context + context.mean(0)

    def read(self, context, fails):
        page = torch.randn(20 + 10 * fails, 256).cuda()
        if fails:
            raise ToolFailed("read")
        return torch.cat([context, self.model(page)])

    def call(self, tool, context, fails):
        try:
            return tool(context, fails)
        except ToolFailed as error:
            checkpoint = context.clone()  # leak
            self.to_retry.append((str(error), checkpoint))
            return context

    def handle(self, rng):
        context, calls = torch.randn(rng.randint(10, 200), 256, device="cuda"), rng.randint(1, 5)
        failing = rng.randrange(calls) if rng.random() < 0.25 else None
        for number in range(calls):
            context = self.think(context)
            context = self.call(rng.choice([self.search, self.calculate, self.read]), context, number == failing)
        return context.mean(0).argmax().item()


@torch.inference_mode()
def main():
    rng, agent = random.Random(43), Agent()
    for _ in range(probe.steps(160)):
        agent.handle(rng)
        probe.step_end()


main()
