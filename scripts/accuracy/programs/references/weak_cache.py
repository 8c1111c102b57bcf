"""A WeakValueDictionary and weak listeners: entries go with their last user.

kind: healthy
steps: 80 240
"""

import weakref
from collections import deque

import probe
import torch
from torch import nn


class Features:
    def __init__(self, tensor):
        self.tensor = tensor


class Store:
    def __init__(self):
        self.known = weakref.WeakValueDictionary()
        self.listeners = weakref.WeakSet()

    def get(self, key):
        found = self.known.get(key)
        if found is None:
            self.known[key] = found = Features(torch.randn(64, 128, device="cuda"))
        self.listeners.add(found)
        return found


store, recent = Store(), deque(maxlen=6)
model = nn.Linear(128, 128).cuda()
optimizer = torch.optim.ASGD(model.parameters())
for step in range(probe.steps(80)):
    features = store.get(step // 2)
    recent.append(features)
    loss = model(features.tensor).norm()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    probe.step_end()
