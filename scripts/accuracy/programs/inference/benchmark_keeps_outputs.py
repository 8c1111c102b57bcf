"""A benchmark calls a model again and again on one input, and its measurements have the outputs.

kind: leak
steps: 80 400
unit: request
"""

import time
from dataclasses import dataclass

import probe
import torch
from torch import nn


@dataclass
class Measurement:
    seconds: float
    output: torch.Tensor


class Benchmark:
    def __init__(self, model, example):
        self.model, self.example, self.measurements = model, example, []

    def measure(self):
        began = time.perf_counter()
        output = self.model(self.example)  # leak
        torch.cuda.synchronize()
        self.measurements.append(Measurement(time.perf_counter() - began, output))


def main():
    model = nn.Sequential(nn.Conv1d(16, 64, 5, padding=2), nn.GELU(), nn.Conv1d(64, 64, 5, padding=2), nn.GELU(), nn.Conv1d(64, 8, 1))
    benchmark = Benchmark(model.cuda().eval(), torch.randn(8, 16, 1000, device="cuda"))
    with torch.inference_mode():
        for _ in range(probe.steps(80)):
            benchmark.measure()
            probe.step_end()
    print(sorted(one.seconds for one in benchmark.measurements)[len(benchmark.measurements) // 2])


main()
