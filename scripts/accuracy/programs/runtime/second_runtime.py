"""Another library calls cudaMalloc itself, beside PyTorch, and forgets a buffer in each step.

kind: leak
steps: 50 150
rate: 4194304
check: no
"""

import ctypes

import probe
import torch
from torch import nn


class VideoDecoder:
    """Stands for a decoder library that takes its surfaces from the CUDA runtime."""

    def __init__(self):
        runtime = f"libcudart.so.{torch.version.cuda.split('.')[0]}"
        self.runtime = ctypes.CDLL(runtime)

    def allocate(self, size):
        address = ctypes.c_void_p()
        status = self.runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(size))  # leak
        assert status == 0
        return address

    def decode(self):
        frame, reference = self.allocate(4 << 20), self.allocate(4 << 20)
        self.runtime.cudaFree(frame)
        probe.hold(4 << 20)
        return reference


def main():
    model = nn.Conv2d(3, 4, 3).cuda()
    decoder = VideoDecoder()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(probe.steps(50)):
        decoder.decode()
        optimizer.zero_grad()
        model(torch.rand(1, 3, 64, 64, device="cuda")).mean().backward()
        optimizer.step()
        probe.step_end()


main()
