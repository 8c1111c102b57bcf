"""Each query scores a catalogue in 40 chunks; the chunks' scores are kept until they are joined.

kind: healthy
steps: 3 20
unit: request
"""

import probe
import torch
from torch import nn


class Scorer(nn.Module):
    def __init__(self, width=64, aspects=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2 * width, 128), nn.ReLU(), nn.Linear(128, aspects))

    def forward(self, items, query):
        return self.body(torch.cat([items, query.expand(len(items), -1)], 1))


@torch.inference_mode()
def best(scorer, catalogue, query, chunk=2000):
    scores = []
    for items in catalogue.split(chunk):
        scores.append(scorer(items, query))
    return torch.cat(scores).mean(1).topk(10).indices.cpu()


def main():
    scorer, catalogue = Scorer().cuda().eval(), torch.randn(80_000, 64, device="cuda")
    for _ in range(probe.steps(3)):
        print(best(scorer, catalogue, torch.randn(1, 64, device="cuda")).shape)
        probe.step_end()


main()
