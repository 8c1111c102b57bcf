"""DQN whose replay buffer is a list of transitions on the GPU, without a capacity.

kind: leak
steps: 100 300
"""

import random
from collections import namedtuple

import probe
import torch
from torch import nn

Transition = namedtuple("Transition", "state action reward next_state")


class Environment:
    def __init__(self):
        self.state = torch.zeros(4, 21, 21, device="cuda")

    def step(self, action):
        frame = torch.rand(1, 21, 21).cuda()
        self.state = torch.cat([self.state[1:], frame])  # leak
        return self.state, float(action)


def learn(network, target, optimizer, batch):
    states = torch.stack([one.state for one in batch])
    with torch.no_grad():
        best = target(torch.stack([one.next_state for one in batch])).amax(1)
    loss = nn.functional.huber_loss(network(states).amax(1), best)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main(steps):
    rng, env, memory = random.Random(2), Environment(), []
    network, target = (nn.Sequential(nn.Flatten(), nn.Linear(4 * 441, 64), nn.Linear(64, 3)).cuda() for _ in range(2))
    optimizer = torch.optim.RMSprop(network.parameters(), lr=2.5e-4, momentum=0.95)
    for step in range(steps):
        state, action = env.state, rng.randrange(3)
        next_state, reward = env.step(action)
        memory.append(Transition(state, action, reward, next_state))
        learn(network, target, optimizer, rng.choices(memory, k=16))
        if step % 25 == 0:
            target.load_state_dict(network.state_dict())
        probe.step_end()


main(probe.steps(100))
