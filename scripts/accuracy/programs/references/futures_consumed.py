"""A pool of threads with results taken in order; list comprehensions on each side.

kind: healthy
steps: 50 160
"""

from concurrent.futures import ThreadPoolExecutor

import probe
import torch
from torch import nn


def augment(seed, copies=6):
    views = [torch.randn(3, 32, 32).cuda() for _ in range(copies)]
    return torch.stack([view.flip(-1) if index % 2 else view for index, view in enumerate(views)])


def main():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.LazyLinear(16)).cuda()
    model(torch.zeros(1, 3, 32, 32, device="cuda"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
    steps = probe.steps(50)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(augment, seed) for seed in range(4)]
        for step in range(steps):
            batches = [waiting.pop(0).result() for _ in range(2)]
            waiting += [pool.submit(augment, step * 2 + extra) for extra in range(2)]
            loss = sum([model(batch).square().mean() for batch in batches])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            probe.step_end()


if __name__ == "__main__":
    main()
