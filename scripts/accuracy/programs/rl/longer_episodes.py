"""REINFORCE as in PyTorch's examples: the episode's lists are cleared after the optimizer step.

Episodes get longer as the policy learns to balance the pole.

kind: healthy
steps: 16 30 120
"""

import probe
import torch
from torch import nn
from torch.distributions import Categorical


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1, self.affine2 = nn.Linear(4, 128), nn.Linear(128, 2)
        self.saved_log_probs, self.rewards = [], []

    def forward(self, x):
        return self.affine2(torch.relu(self.affine1(x))).softmax(-1)


def select_action(policy, state):
    choice = Categorical(policy(state[None].cuda()), validate_args=False)
    action = choice.sample()
    policy.saved_log_probs.append(choice.log_prob(action))
    return action


def finish_episode(policy, optimizer):
    returns = torch.tensor(policy.rewards).flip(0).cumsum(0).flip(0).cuda()
    loss = [-log_prob * value for log_prob, value in zip(policy.saved_log_probs, returns)]
    optimizer.zero_grad()
    loss = torch.cat(loss).sum()
    loss.backward()
    optimizer.step()
    del policy.rewards[:]
    del policy.saved_log_probs[:]


policy = Policy().cuda()
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
for episode in range(probe.steps(30)):
    for t in range(5 + 2 * episode):
        select_action(policy, torch.randn(4))
        policy.rewards.append(1.0)
    finish_episode(policy, optimizer)
    probe.step_end()
