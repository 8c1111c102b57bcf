"""Captures graphs for six padded lengths in the first requests, then only replays them.

kind: healthy
steps: 80 240
unit: request
without: async nocache
"""

import random

import probe
import torch
from torch import nn

BUCKETS = [16, 32, 64, 128, 256, 512]


class BucketedDecoder:
    def __init__(self, model):
        self.model, self.pool, self.captured = model, torch.cuda.graph_pool_handle(), {}

    def warm_up(self):
        for size in reversed(BUCKETS):
            static = torch.zeros(size, 64, device="cuda")
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool):
                output = self.model(static)
            self.captured[size] = graph, static, output

    def __call__(self, x):
        size = next(bucket for bucket in BUCKETS if bucket >= len(x))
        graph, static, output = self.captured[size]
        static[:len(x)] = x
        graph.replay()
        return output[:len(x)].clone()


with torch.no_grad():
    model = nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 64)).cuda()
    model(torch.zeros(1, 64, device="cuda"))
    decoder, rng = BucketedDecoder(model), random.Random(2)
    decoder.warm_up()
    for request in range(probe.steps(80)):
        for _ in range(rng.randint(1, 6)):
            decoder(torch.randn(rng.randint(1, 512), 64, device="cuda"))
        probe.step_end()
