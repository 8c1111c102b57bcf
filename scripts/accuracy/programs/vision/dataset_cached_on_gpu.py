"""Decoded images are cached on the GPU in the first epoch; later epochs read them.

kind: healthy
steps: 160 400
"""

import probe
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class CachedImages(Dataset):
    def __init__(self, count):
        self.images = [None] * count

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        if self.images[index] is None:
            self.images[index] = torch.rand(3, 40, 40).cuda()
        return self.images[index]


def main():
    steps = probe.steps(160)
    loader = DataLoader(CachedImages(steps), batch_size=4, shuffle=True)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4800, 32), nn.Dropout(0.2), nn.Linear(32, 2)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    done = 0
    while done < steps:
        for batch in loader:
            optimizer.zero_grad()
            model(batch).exp().mean().backward()
            optimizer.step()
            done += 1
            probe.step_end()
            if done == steps:
                break


main()
