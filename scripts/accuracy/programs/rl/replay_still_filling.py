"""The right way, `deque(maxlen=100_000)`; the run ends long before the buffer is full.

kind: filling
steps: 100 300
limit: a buffer grows like a leak until it is full; a holder scan finds its limit
"""

import random
from collections import deque

import probe
import torch
from torch import nn


class ReplayBuffer:
    def __init__(self, capacity):
        self.items = deque(maxlen=capacity)

    def push(self, *transition):
        self.items.append(transition)

    def sample(self, rng, count):
        return [torch.stack(column) for column in zip(*(self.items[rng.randrange(len(self.items))] for _ in range(count)))]


class SoftActorCritic:
    def __init__(self):
        self.actor = nn.Sequential(nn.Linear(24, 128), nn.ReLU(), nn.Linear(128, 6)).cuda()
        self.critic = nn.Sequential(nn.Linear(30, 128), nn.ReLU(), nn.Linear(128, 1)).cuda()
        self.optimizer = torch.optim.Adam([*self.actor.parameters(), *self.critic.parameters()])

    def learn(self, states, actions, next_states):
        value = self.critic(torch.cat([states, actions], 1))
        policy = self.critic(torch.cat([next_states, self.actor(next_states)], 1))
        self.optimizer.zero_grad()
        (value.square().mean() - policy.mean()).backward()
        self.optimizer.step()


def main(steps):
    rng, buffer, agent = random.Random(3), ReplayBuffer(100_000), SoftActorCritic()
    state = torch.zeros(24, device="cuda")
    for _ in range(steps):
        with torch.no_grad():
            action = agent.actor(state)
        next_state = torch.randn(24, device="cuda")
        buffer.push(state, action, next_state)
        state = next_state
        agent.learn(*buffer.sample(rng, 32))
        probe.step_end()


main(probe.steps(100))
