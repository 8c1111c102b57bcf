"""Ten-fold cross-validation; each fold's predictions are kept for the final curve.

kind: leak
steps: 80 240
every: 8
"""

import probe
import torch
from torch import nn


class Fold:
    def __init__(self, number, features=200):
        self.number = number
        self.model = nn.Sequential(nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, 1)).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def train(self, data):
        for batch in data.split(256)[:8]:
            self.optimizer.zero_grad()
            nn.functional.softplus(self.model(batch)).mean().backward()
            self.optimizer.step()
            probe.step_end()

    @torch.no_grad()
    def predict(self, data):
        return self.model(data).sigmoid()  # leak


def main():
    data, curves = torch.randn(50_000, 200).cuda(), {}
    for number in range(probe.steps(80) // 8):
        fold = Fold(number)
        fold.train(data)
        curves[number] = fold.predict(data)
    print(torch.cat(list(curves.values())).mean().item())


main()
