"""A MemPool for each trial, kept in a list: its segments stay reserved, though tensors are freed.

kind: leak
steps: 48 120
every: 4
measure: reserved
rate: 5242880
without: async nocache expandable
limit: half of the shortest run keeps six pools, too few to tell a leak from sizes that grow
"""

import probe
import torch
from torch import nn


class Arena:
    pools = []

    def __init__(self):
        self.pool = torch.cuda.MemPool()
        self.pools.append(self.pool)

    def scratch(self, rows):
        with torch.cuda.use_mem_pool(self.pool):
            return torch.empty(rows, 1024, device="cuda")  # leak


def main():
    model = nn.Linear(1024, 16).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(probe.steps(48)):
        if step % 4 == 0:
            arena = Arena()
        scratch = arena.scratch(2500)
        optimizer.zero_grad()
        model(scratch[:64].clone()).mean().backward()
        optimizer.step()
        del scratch
        probe.step_end()


main()
