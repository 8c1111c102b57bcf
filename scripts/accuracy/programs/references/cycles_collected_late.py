"""The same cycles with the collector on: memory rises until a collection, then falls to the base.

kind: healthy
steps: 120 300
limit: no garbage collection runs before the recording ends
"""

import probe
import torch
from torch import nn


class Node:
    def __init__(self, value, parent=None):
        self.value, self.parent, self.children = value, parent, []

    def add(self, value):
        child = Node(value, self)
        self.children.append(child)
        return child


class TreeLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.merge = nn.Linear(128, 64)

    def forward(self, node):
        if not node.children:
            return node.value
        return torch.tanh(self.merge(torch.cat([self(child) for child in node.children[:2]], -1)))


def grow(node, depth):
    if depth:
        for _ in range(2):
            grow(node.add(torch.randn(256, 64, device="cuda")), depth - 1)
    return node


model = TreeLSTM().cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(probe.steps(120)):
    tree = grow(Node(None), 3)
    optimizer.zero_grad()
    model(tree).mean().backward()
    optimizer.step()
    probe.step_end()
