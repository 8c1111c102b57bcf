"""A new stream for each request: memory freed on one stream is stranded, the next cannot use it.

kind: leak
steps: 30
unit: request
measure: reserved
rate: varies
without: async nocache
"""

import probe
import torch
from torch import nn


class Pipeline:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024)).cuda()

    @torch.no_grad()
    def process(self, rows):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            x = torch.randn(rows, 1024, device="cuda")  # leak-or
            out = self.model(x)  # leak
        stream.synchronize()
        return out.cpu()


pipeline = Pipeline()
for request in range(probe.steps(30)):
    pipeline.process(600)
    probe.step_end()
