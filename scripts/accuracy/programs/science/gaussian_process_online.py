"""Bayesian optimization: each observation adds a row to the inputs and rebuilds the kernel matrix.

kind: growing
steps: 60 180
unit: request
"""

import probe
import torch


class GaussianProcess:
    def __init__(self, width):
        self.x, self.y = torch.zeros(0, width, device="cuda"), torch.zeros(0, device="cuda")
        self.kernel = None

    def observe(self, x, y):
        self.x, self.y = torch.cat([self.x, x]), torch.cat([self.y, y])
        self.kernel = (-torch.cdist(self.x, self.x).square()).exp() + 1e-3 * torch.eye(len(self.x), device="cuda")

    def acquisition(self, candidates):
        weights = (-torch.cdist(candidates, self.x).square()).exp()
        return weights @ self.y


process = GaussianProcess(6)
for trial in range(probe.steps(60)):
    candidates = torch.rand(500, 6, device="cuda")
    scores = process.acquisition(candidates)
    process.observe(candidates[:8], torch.rand(8, device="cuda"))
    del candidates, scores
    probe.step_end()
