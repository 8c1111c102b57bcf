"""Four phases share a helper that keeps features of the phase for its report, and then clears them.

kind: healthy
steps: 48 144
"""

import probe
import torch
from torch import nn


class PhaseReport:
    def __init__(self):
        self.features = []

    def keep(self, features):
        self.features.append(features.detach().clone())

    def close(self):
        mean = torch.cat(self.features).mean().item()
        self.features.clear()
        return mean


def reconstruct(model, x):
    features = model[:2](x)
    return features, (model[2](features) - x).square().mean()


def contrast(model, x):
    features = model[:2](x)
    return features, (features @ features.T).logsumexp(1).mean()


def regularize(model, x):
    features = model[:2](x)
    return features, features.abs().mean()


def predict(model, x):
    features = model[:2](x)
    return features, (model[2](features)[1:] - x[:-1]).square().mean()


def run_phase(model, optimizer, report, objective, steps):
    for _ in range(steps):
        features, loss = objective(model, torch.randn(96, 200, device="cuda"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report.keep(features)
        probe.step_end()
    return report.close()


def main():
    per_phase, report = probe.steps(48) // 4, PhaseReport()
    model = nn.Sequential(nn.Linear(200, 300), nn.ReLU(), nn.Linear(300, 200)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for objective in (reconstruct, contrast, regularize, predict):
        print(objective.__name__, run_phase(model, optimizer, report, objective, per_phase))


main()
