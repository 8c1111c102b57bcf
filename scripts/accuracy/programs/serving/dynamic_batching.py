"""Worker threads collect requests into batches; traffic rises, so more work is in flight.

kind: healthy
steps: 200 600
unit: request
check: no
"""

import queue
import random
import threading
import time

import probe
import torch
from torch import nn


class Batcher(threading.Thread):
    def __init__(self, model):
        super().__init__(daemon=True)
        self.model, self.inbox = model, queue.Queue()

    def run(self):
        while True:
            batch = [self.inbox.get()]
            while len(batch) < 32 and not self.inbox.empty():
                batch.append(self.inbox.get_nowait())
            stop = None in batch
            batch = [one for one in batch if one]
            if batch:
                with torch.no_grad():
                    outputs = self.model(torch.stack([x for x, _ in batch]))
                for (_, reply), out in zip(batch, outputs):
                    reply.put(out.cpu())
            del batch
            if stop:
                return


def main():
    requests, rng = probe.steps(200), random.Random(13)
    batcher = Batcher(nn.Sequential(nn.Linear(4096, 1024), nn.ReLU(), nn.Linear(1024, 10)).cuda())
    batcher.start()
    waiting = []
    for number in range(requests):
        reply = queue.Queue()
        batcher.inbox.put((torch.randn(4096, device="cuda"), reply))
        waiting.append(reply)
        # Up to 4, then up to 64 requests wait for their answers.
        while len(waiting) > 4 + 60 * number // requests:
            waiting.pop(0).get()
        if rng.random() < 0.05:
            time.sleep(0.003)
        probe.step_end()
    batcher.inbox.put(None)
    batcher.join()


main()
