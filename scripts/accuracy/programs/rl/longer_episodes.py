"""REINFORCE whose episodes get longer as the policy learns; all of an episode is freed at its end.

kind: healthy
steps: 40 120
"""

import random

import probe
import torch
from torch import nn
from torch.distributions import Categorical

policy = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 2)).cuda()
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
rng = random.Random(0)


def play(length):
    log_probs, rewards = [], []
    for _ in range(length):
        state = torch.randn(1, 4).to("cuda")
        choice = Categorical(logits=policy(state), validate_args=False)
        action = choice.sample()
        log_probs.append(choice.log_prob(action))
        rewards.append(1.0)
    return torch.cat(log_probs), torch.tensor(rewards).flip(0).cumsum(0).flip(0).cuda()


for episode in range(probe.steps(40)):
    log_probs, returns = play(4 + episode + rng.randint(0, 6))
    loss = -(log_probs * returns).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    del log_probs, returns, loss
    probe.step_end()
