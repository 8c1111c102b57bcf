"""Self-play: every 12 steps a copy of the policy joins the pool of opponents, which has no bound.

kind: leak
steps: 72 240
every: 12
limit: six leak events, of which the last is not settled yet: it is a possible leak
"""

import copy
import random

import probe
import torch
from torch import nn


class League:
    def __init__(self, policy):
        self.members = [copy.deepcopy(policy)]

    def admit(self, policy):
        self.members.append(copy.deepcopy(policy).requires_grad_(False))  # leak

    def opponent(self, rng):
        return rng.choice(self.members)


def main():
    rng = random.Random(7)
    policy = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 16)).cuda()
    league = League(policy)
    optimizer = torch.optim.AdamW(policy.parameters())
    for step in range(probe.steps(72)):
        state = torch.randn(64, 64, device="cuda")
        with torch.no_grad():
            reply = league.opponent(rng)(state)
        loss = (policy(state).softmax(1) * reply).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 12 == 11:
            league.admit(policy)
        probe.step_end()


main()
