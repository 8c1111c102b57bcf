"""Evaluates the policy every 10 steps for a curve; the summed log-probabilities keep their graphs.

kind: leak
steps: 30 150
every: 10
"""

import probe
import torch
from torch import nn


class Environment:
    """A batch of 64 environments on the GPU, as simulators have."""

    def reset(self):
        return torch.zeros(64, 12, device="cuda")

    def step(self, state, action):
        return state + 0.1 * torch.randn_like(state), (state * action).mean(1)


def evaluate(policy, environment, length=15):
    state, total = environment.reset(), 0.0
    for _ in range(length):
        log_probs = policy(state).log_softmax(-1)  # leak
        total = total + log_probs.amax(1)
        state, _ = environment.step(state, 0.5)  # leak-or
    return total.mean()


def improve(policy, environment, optimizer):
    state, loss = environment.reset(), 0.0
    for _ in range(5):
        log_probs = policy(state).log_softmax(-1)
        state, reward = environment.step(state, 1.0)
        loss = loss - (log_probs[:, 0] * reward.detach()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main():
    policy, environment, curve = nn.Sequential(nn.Linear(12, 256), nn.Tanh(), nn.Linear(256, 4)).cuda(), Environment(), []
    optimizer = torch.optim.RMSprop(policy.parameters(), lr=7e-4)
    for step in range(1, probe.steps(30) + 1):
        improve(policy, environment, optimizer)
        if step % 10 == 0:
            curve.append(evaluate(policy, environment))
        probe.step_end()


main()
