"""A GradCAM object per explained image; its hooks are never removed and keep its activations.

kind: leak
steps: 40 120
unit: request
rate: varies
"""

import probe
import torch
from torch import nn


class GradCAM:
    def __init__(self, model, layer):
        self.model = model
        layer.register_forward_hook(self.save_activation)
        self.activation = None

    def save_activation(self, module, inputs, output):
        if self.activation is None:
            self.activation = output

    def explain(self, image):
        score = self.model(image)[0, 0]  # leak
        grad, = torch.autograd.grad(score, self.activation, retain_graph=True)
        return (grad.mean((2, 3), keepdim=True) * self.activation).sum(1).relu().detach().cpu()


def build():
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
                         nn.Flatten(), nn.Linear(32, 10))


model = build().cuda().eval()
for image in range(probe.steps(40)):
    GradCAM(model, model[2]).explain(torch.randn(1, 3, 64, 64).cuda())
    probe.step_end()
