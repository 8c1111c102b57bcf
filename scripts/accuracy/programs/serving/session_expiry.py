"""Sessions expire after a number of requests; arrivals come in waves, so memory goes up and down.

kind: healthy
steps: 300 900
unit: request
check: no
"""

import heapq
import math
import random

import probe
import torch
from torch import nn


class Sessions:
    def __init__(self):
        self.states, self.deadlines = {}, []

    def touch(self, user, state, now, life):
        self.states[user] = state
        heapq.heappush(self.deadlines, (now + life, user))

    def expire(self, now):
        while self.deadlines and self.deadlines[0][0] <= now:
            self.states.pop(heapq.heappop(self.deadlines)[1], None)


def main(requests):
    rng, sessions = random.Random(15), Sessions()
    cell = nn.LSTMCell(64, 512).cuda().requires_grad_(False)
    for now in range(requests):
        wave = 1 + math.sin(now / requests * 4 * math.pi)
        sessions.expire(now)
        for _ in range(1 + int(3 * wave * rng.random())):
            user = rng.randrange(10_000)
            state = sessions.states.get(user)
            sessions.touch(user, cell(torch.randn(4, 64, device="cuda"), state), now, rng.randint(10, 40))
        probe.step_end()


main(probe.steps(300))
