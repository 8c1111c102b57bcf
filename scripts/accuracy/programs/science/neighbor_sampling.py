"""GNN with neighbour sampling: subgraphs of random size, sparse adjacency, nothing kept.

kind: healthy
steps: 60 200
"""

import random

import probe
import torch
from torch import nn

rng = random.Random(3)
weights = nn.ParameterList([nn.Parameter(torch.randn(a, b, device="cuda") / a) for a, b in [(32, 64), (64, 4)]])
optimizer = torch.optim.SGD(weights, lr=0.1)


def subgraph():
    nodes, edges = rng.randint(200, 800), rng.randint(1000, 6000)
    index = torch.randint(0, nodes, (2, edges))
    adjacency = torch.sparse_coo_tensor(index, torch.ones(edges), (nodes, nodes), is_coalesced=True)
    return torch.randn(nodes, 32).cuda(), adjacency.cuda()


for step in range(probe.steps(60)):
    x, adjacency = subgraph()
    for weight in weights:
        x = torch.sparse.mm(adjacency, x @ weight)
    optimizer.zero_grad()
    x.square().mean().backward()
    optimizer.step()
    del x, adjacency
    probe.step_end()
