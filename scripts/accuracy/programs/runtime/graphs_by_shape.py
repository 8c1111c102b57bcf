"""Captures a CUDA graph for each new sequence length and keeps all: static inputs and outputs stay.

kind: leak
steps: 40 120
unit: request
without: async nocache
"""

import random

import probe
import torch
from torch import nn


class GraphRunner:
    def __init__(self, model):
        self.model, self.graphs = model, {}

    def capture(self, length):
        static = torch.zeros(1, length, 128, device="cuda")  # leak-or
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = self.model(static)  # leak
        return graph, static, output

    def __call__(self, x):
        if x.shape[1] not in self.graphs:
            self.graphs[x.shape[1]] = self.capture(x.shape[1])
        graph, static, output = self.graphs[x.shape[1]]
        static.copy_(x)
        graph.replay()
        return output.clone()


@torch.no_grad()
def main(requests):
    rng = random.Random(1)
    model = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)).cuda()
    model(torch.zeros(1, 1, 128, device="cuda"))
    run, lengths = GraphRunner(model), list(range(32, 1000))
    rng.shuffle(lengths)
    for length in lengths[:requests]:
        run(torch.randn(1, length, 128, device="cuda"))
        probe.step_end()


main(probe.steps(40))
