"""Learns a learning rate through inner steps that are never cut off: the unrolled graph only grows.

kind: leak
steps: 40 100
"""

import probe
import torch
from torch import nn


class LearnedRate(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_rate = nn.Parameter(torch.tensor(-3.0))

    def forward(self, weights, grads):
        return [weight - self.log_rate.exp() * grad for weight, grad in zip(weights, grads)]


def inner_loss(weights, x):
    hidden = torch.tanh(x @ weights[0])
    return (hidden @ weights[1]).square().mean()


def main():
    rule = LearnedRate().cuda()
    weights = [torch.randn(64, 128, device="cuda", requires_grad=True), torch.randn(128, 8, device="cuda", requires_grad=True)]
    for _ in range(probe.steps(40)):
        loss = inner_loss(weights, torch.randn(32, 64, device="cuda"))  # leak-or
        grads = torch.autograd.grad(loss, weights, create_graph=True)  # leak
        weights = rule(weights, grads)  # leak-or
        probe.step_end()
    print(rule.log_rate.item())


main()
