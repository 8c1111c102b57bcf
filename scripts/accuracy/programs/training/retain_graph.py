"""Two losses share a graph, so `retain_graph=True`; the dictionary for the log keeps all graphs.

kind: leak
steps: 40 120
"""

import probe
import torch
from torch import nn


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU())
        self.classify = nn.Linear(512, 20)
        self.regress = nn.Linear(512, 1)

    def forward(self, x):
        hidden = self.trunk(x)
        return self.classify(hidden), self.regress(hidden)


def main(steps):
    model = TwoHeads().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    log = {}
    for step in range(steps):
        x = torch.randn(128, 256, device="cuda")
        labels = torch.zeros(128, dtype=torch.long, device="cuda")
        classes, values = model(x)  # leak
        first = nn.functional.cross_entropy(classes, labels)
        second = values.pow(2).mean()
        optimizer.zero_grad()
        first.backward(retain_graph=True)
        second.backward(retain_graph=True)
        optimizer.step()
        log[step] = {"class": first, "value": second}
        probe.step_end()


if __name__ == "__main__":
    main(probe.steps(40))
