"""Walk-forward backtest: each fold trains on all data so far, so one tensor gets larger.

kind: growing
steps: 48 144
"""

import probe
import torch
from torch import nn


class Forecaster(nn.Module):
    def __init__(self, lags=16):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(lags, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, windows):
        return self.net(windows)[:, 0]


def main():
    series, fold = torch.randn(200_000), 1000
    for number in range(probe.steps(48)):
        past = series[:fold * (number + 1)].cuda()
        windows = past.unfold(0, 16, 1)
        model = Forecaster().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loss = (model(windows[:-1]) - past[16:]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        probe.step_end()


main()
