"""Compiles a function with a new file name for each request; all of them keep their results.

kind: leak
steps: 60 200
unit: request
rate: 131072
"""

import probe
import torch
from torch import nn

TEMPLATE = """
def transform(x):
    scaled = x * {scale}
    return publish(scaled.clamp(min=0))
"""
results = []


def publish(x):
    normalized = x.div(2)  # leak
    results.append(normalized)
    return normalized


def compile_rule(number):
    scope = {"publish": publish}
    exec(compile(TEMPLATE.format(scale=1 + number / 10), f"<rule {number}>", "exec"), scope)
    return scope["transform"]


@torch.no_grad()
def main(requests):
    model = nn.Linear(64, 512).cuda()
    for number in range(requests):
        transform = compile_rule(number)
        transform(model(torch.randn(64, 64, device="cuda")))
        probe.step_end()


main(probe.steps(60))
