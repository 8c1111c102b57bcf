"""The usual benchmark: many passes over one input; only times and the last output stay.

kind: healthy
steps: 80 400
unit: request
"""

import time

import probe
import torch
from torch import nn


@torch.inference_mode()
def measure(model, example, passes):
    seconds, output = [], None
    for _ in range(passes):
        began = time.perf_counter()
        output = model(example)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        probe.step_end()
    return seconds, output


model = nn.Sequential(nn.Conv2d(3, 32, 3, stride=2), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2), nn.ReLU(), nn.Conv2d(64, 16, 1))
model.cuda().eval()
example = torch.randn(4, 3, 128, 128, device="cuda")
passes = probe.steps(80)
seconds, output = measure(model, example, passes)
print(f"median {sorted(seconds[passes // 10:])[passes // 2] * 1e3:.2f} ms, output {tuple(output.shape)}")
