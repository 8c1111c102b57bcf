"""`saved_tensors_hooks` packs what autograd saves into a table that is never emptied.

kind: leak
steps: 40 120
"""

import probe
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks


class Offload:
    """Meant to move saved tensors to the host; `pack` keeps the originals in its table."""

    def __init__(self):
        self.table = {}

    def pack(self, tensor):
        self.table[len(self.table)] = tensor
        return len(self.table) - 1

    def unpack(self, key):
        return self.table[key]


def main(steps):
    offload = Offload()
    model = nn.Sequential(nn.Linear(100, 400), nn.Sigmoid(), nn.Linear(400, 100), nn.Softplus()).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        batch = torch.randn(200, 100, device="cuda")
        with saved_tensors_hooks(offload.pack, offload.unpack):
            output = model(batch)  # leak
        loss = output.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        probe.step_end()


main(probe.steps(40))
