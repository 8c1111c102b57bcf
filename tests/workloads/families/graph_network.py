"""A graph network: messages along edges are gathered, and summed by scatter."""

import torch
from torch import nn
from training import options, train


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.message, self.update = nn.Linear(2 * width, width), nn.GRUCell(width, width)

    def forward(self, nodes, source, target):
        message = torch.relu(self.message(torch.cat([nodes[source], nodes[target]], -1)))
        total = torch.zeros_like(nodes).scatter_add_(0, target[:, None].expand_as(message), message)
        return self.update(total, nodes)


class Model(nn.Module):
    def __init__(self, width=128, depth=4):
        super().__init__()
        self.embed, self.layers, self.head = nn.Linear(16, width), nn.ModuleList(Layer(width) for _ in range(depth)), nn.Linear(width, 10)

    def forward(self, features, source, target):
        nodes = self.embed(features)
        for layer in self.layers:
            nodes = layer(nodes, source, target)
        return self.head(nodes)


args = options(nodes=20000, edges=120000)
model = Model().cuda()


def loss_of(model):
    edges = torch.randint(args.nodes, (2, args.edges)).cuda()
    output = model(torch.randn(args.nodes, 16).cuda(), *edges)
    return nn.functional.cross_entropy(output, torch.randint(10, (args.nodes,)).cuda())


train(model, loss_of, args.steps)
