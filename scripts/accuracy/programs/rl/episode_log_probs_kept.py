"""REINFORCE with log-probabilities on `self`: the loss uses the last episode, nothing clears them.

kind: leak
steps: 40 120
"""

import random

import probe
import torch
from torch import nn
from torch.distributions import Normal


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 2))
        self.log_std = nn.Parameter(torch.zeros(2))
        self.saved_log_probs = []

    def act(self, state):
        distribution = Normal(self.mean(state), self.log_std.exp(), validate_args=False)  # leak
        action = distribution.sample()
        self.saved_log_probs.append(distribution.log_prob(action).sum())  # leak-or
        return action


def main(episodes):
    rng, agent = random.Random(1), Agent().cuda()
    optimizer = torch.optim.Adam(agent.parameters())
    for _ in range(episodes):
        length = rng.randint(10, 25)
        for _ in range(length):
            agent.act(torch.randn(8).cuda())
        loss = -torch.stack(agent.saved_log_probs[-length:]).mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        probe.step_end()


main(probe.steps(40))
