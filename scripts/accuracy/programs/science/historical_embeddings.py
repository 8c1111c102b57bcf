"""GNN training that keeps "historical embeddings" by sampled subgraph, which never comes again.

kind: leak
steps: 60 180
"""

import random

import probe
import torch
from torch import nn


class GraphConvolution(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, features, adjacency):
        return torch.relu(adjacency @ self.linear(features))


class Sampler:
    def __init__(self, nodes, rng):
        self.nodes, self.rng = nodes, rng

    def sample(self):
        chosen = sorted(self.rng.sample(range(self.nodes), self.rng.randint(80, 200)))
        size = len(chosen)
        return frozenset(chosen), torch.rand(size, 64).cuda(), torch.rand(size, size).cuda()


def main():
    sampler, history = Sampler(5000, random.Random(2)), {}
    layers = nn.ModuleList([GraphConvolution(64, 128), GraphConvolution(128, 8)]).cuda()
    optimizer = torch.optim.Adam(layers.parameters())
    for _ in range(probe.steps(60)):
        nodes, features, adjacency = sampler.sample()
        hidden = layers[0](features, adjacency)  # leak
        history[nodes] = hidden.detach()
        loss = layers[1](hidden, adjacency).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        probe.step_end()


main()
