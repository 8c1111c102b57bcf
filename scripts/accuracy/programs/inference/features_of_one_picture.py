"""Shows a picture's features at all layers: hooks keep each output by name, until the next picture.

kind: healthy
steps: 2 10
unit: request
"""

import probe
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        hidden = nn.functional.gelu(self.up(self.norm(x)))
        return x + self.down(hidden)


class Watcher:
    """Has the newest output of each layer, with its graph for gradients by class."""

    def __init__(self, model):
        self.features = {}
        for name, layer in model.named_children():
            layer.register_forward_hook(self.keep_as(name))

    def keep_as(self, name):
        def hook(layer, inputs, output):
            self.features[name] = output

        return hook


def main():
    model = nn.Sequential(*(Block() for _ in range(24))).cuda().eval()
    watcher = Watcher(model)
    for _ in range(probe.steps(2)):
        model(torch.randn(1, 196, 192, device="cuda"))
        print(len(watcher.features), "layers")
        probe.step_end()


main()
