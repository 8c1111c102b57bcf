"""Loads 48 equal shards of a checkpoint, answers two requests, and waits for more that never come.

kind: healthy
steps: 2 8
unit: request
"""

import probe
import torch


def read_shards(count):
    """Stands for a reader of safetensors: one file after the other, on the host."""
    for number in range(count):
        yield f"layers.{number}.weight", torch.zeros(512, 512)


class Weights:
    def __init__(self, shards):
        self.by_name = {}
        for name, tensor in shards:
            self.by_name[name] = tensor.to("cuda")

    @torch.no_grad()
    def answer(self, x):
        for weight in self.by_name.values():
            x = torch.relu(x @ weight)
        return x.argmax(-1).tolist()


weights = Weights(read_shards(48))
for request in range(probe.steps(2)):
    print(len(weights.answer(torch.randn(8, 512, device="cuda"))))
    probe.step_end()
