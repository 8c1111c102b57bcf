"""A prefetch thread fills a queue without a limit, faster than training empties it.

kind: leak
steps: 60 180
limit: a queue frees its blocks in order, so none stays; thread timing decides how it grows
"""

import queue
import threading

import probe
import torch
from torch import nn


class Prefetcher(threading.Thread):
    """Loads two batches for each one that is taken."""

    def __init__(self, batches):
        super().__init__(daemon=True)
        self.ready, self.taken, self.batches = queue.Queue(), threading.Semaphore(2), batches

    def run(self):
        for _ in range(self.batches):
            self.taken.acquire()
            self.ready.put(torch.randn(64, 256).cuda())  # leak
        self.ready.put(None)

    def next(self):
        self.taken.release()
        self.taken.release()
        return self.ready.get()


def main():
    steps = probe.steps(60)
    loader = Prefetcher(2 * steps)
    loader.start()
    model = nn.Linear(256, 256).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        batch = loader.next()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        probe.step_end()


main()
