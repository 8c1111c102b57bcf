"""Hooks record the outputs of all layers for histograms; `clear()` exists and is never called.

kind: leak
steps: 30 100
unit: request
"""

from collections import defaultdict
from functools import partial

import probe
import torch
from torch import nn


class ActivationRecorder:
    def __init__(self, model):
        self.outputs = defaultdict(list)
        for name, module in model.named_modules():
            if isinstance(module, nn.ReLU):
                module.register_forward_hook(partial(self.record, name))

    def record(self, name, module, inputs, output):
        self.outputs[name].append(output)

    def clear(self):
        self.outputs.clear()


def build(depth=12, width=16):
    layers = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU()]
    for _ in range(depth - 1):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers)


@torch.no_grad()
def main():
    model = build().cuda().eval()
    recorder = ActivationRecorder(model)
    for _ in range(probe.steps(30)):
        images = torch.rand(4, 3, 64, 64).cuda()
        model(images)  # leak
        probe.step_end()
    print(len(recorder.outputs))


main()
