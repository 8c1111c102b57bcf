"""A C extension forgets a Py_DECREF: the tensors it was given can never be freed.

kind: leak
steps: 60 200
"""

import ctypes

import probe
import torch
from torch import nn


class NativeCodec:
    """Stands for the extension; `encode` takes a reference that nothing releases."""

    def encode(self, tensor):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(tensor))
        return tensor.numel()


def quantize(gradient, codec):
    compressed = (gradient * 127).to(torch.int8)  # leak
    return codec.encode(compressed)


def main():
    codec, sent = NativeCodec(), 0
    model = nn.Bilinear(40, 40, 40).cuda()
    optimizer = torch.optim.Rprop(model.parameters())
    for _ in range(probe.steps(60)):
        x = torch.randn(16, 40, device="cuda")
        optimizer.zero_grad()
        model(x, x).sum().backward()
        sent += quantize(model.weight.grad, codec)
        optimizer.step()
        probe.step_end()
    print(sent)


main()
