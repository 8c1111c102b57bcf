"""PPO: rollouts of random length, several epochs of minibatches over each, storage cleared after.

kind: healthy
steps: 48 160
"""

import random
from dataclasses import dataclass, field

import probe
import torch
from torch import nn


@dataclass
class Storage:
    states: list = field(default_factory=list)
    log_probs: list = field(default_factory=list)
    values: list = field(default_factory=list)

    def clear(self):
        for column in (self.states, self.log_probs, self.values):
            column.clear()


actor, critic = nn.Linear(10, 4).cuda(), nn.Linear(10, 1).cuda()
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=3e-4)
rng, storage, steps, done = random.Random(6), Storage(), probe.steps(48), 0
while done < steps:
    with torch.no_grad():
        for _ in range(rng.randint(10, 60)):
            state = torch.randn(10, device="cuda")
            storage.states.append(state)
            storage.log_probs.append(actor(state).log_softmax(-1))
            storage.values.append(critic(state))
    states, old, values = (torch.stack(column) for column in (storage.states, storage.log_probs, storage.values))
    for _ in range(min(4, steps - done)):
        ratio = (actor(states).log_softmax(-1) - old).exp()
        loss = (ratio.clamp(0.8, 1.2).mean(1) * values.flatten()).mean() + (critic(states) - values).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done += 1
        probe.step_end()
    storage.clear()
