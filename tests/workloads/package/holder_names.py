"""Prints how a holder scan names a model's parameters, and why it names no frozen tensor.

usage: holder_names.py FOLDER      FOLDER has the package gpumemtrace
"""

import gc
import sys
import time

import torch
from torch import nn

sys.path.insert(0, sys.argv[1])
from gpumemtrace._holders import scan, torch_objects  # noqa: E402


class Cycle:
    def __init__(self):
        self.me, self.tensor = self, torch.empty(1 << 20, device="cuda")


net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(12))).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
objects = torch_objects.TorchObjects.of_program()
lost = objects.storage_address(Cycle().tensor)
gc.freeze()
of_all = {objects.storage_address(parameter): 1 for parameter in net.parameters()}
of_first = {objects.storage_address(net[0].weight): 1, lost: 1}
for wanted in of_all, of_first:
    holders, reasons, *_ = scan._find_holders(objects, wanted, time.monotonic(), 20.0)
    print(sorted({(holder["name"], holder["type"], *holder["chain"]) for holder in holders.values()}), list(reasons.values()))
