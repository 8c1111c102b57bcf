"""A new environment per episode; all are kept for a `close()` at exit, with their frame stacks.

kind: leak
steps: 80 240
every: 5
"""

import atexit

import probe
import torch
from torch import nn


class VectorEnvironment:
    def __init__(self, count=4):
        self.frames = torch.zeros(count, 4, 84, 84, dtype=torch.uint8, device="cuda")  # leak
        atexit.register(self.close)

    def step(self):
        self.frames[:, :-1] = self.frames[:, 1:].clone()
        self.frames[:, -1] = torch.randint(0, 255, (4, 84, 84)).to("cuda", torch.uint8)
        return self.frames

    def close(self):
        self.frames = None


network = nn.Sequential(nn.Conv2d(4, 16, 8, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 400, 6)).cuda()
optimizer = torch.optim.RMSprop(network.parameters())
for step in range(probe.steps(80)):
    if step % 5 == 0:
        env = VectorEnvironment()
    values = network(env.step().float() / 255)
    optimizer.zero_grad()
    values.logsumexp(1).mean().backward()
    optimizer.step()
    probe.step_end()
