"""The same kind of server with a bounded number of sessions: the oldest is evicted.

kind: healthy
steps: 300 1000
unit: request
"""

import asyncio
import random
from collections import OrderedDict

import probe
import torch
from torch import nn


class Sessions(OrderedDict):
    def __init__(self, limit):
        super().__init__()
        self.limit = limit

    def store(self, key, value):
        self[key] = value
        self.move_to_end(key)
        while len(self) > self.limit:
            self.popitem(last=False)


@torch.inference_mode()
async def chat(model, sessions, user, turns):
    for _ in range(turns):
        old = sessions.get(user)
        hidden = model(torch.randn(1, 16, 96, device="cuda"))
        # The window is at most 64 tokens.
        sessions.store(user, hidden if old is None else torch.cat([old, hidden], 1)[:, -64:].clone())
        await asyncio.sleep(0)
    probe.step_end()


async def main(requests):
    rng, model, sessions = random.Random(2), nn.Linear(96, 96).cuda(), Sessions(24)
    for begin in range(0, requests, 5):
        await asyncio.gather(*(chat(model, sessions, rng.randrange(400), rng.randint(1, 6)) for _ in range(min(5, requests - begin))))


asyncio.run(main(probe.steps(300)))
