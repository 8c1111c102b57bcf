"""A threaded service whose audit log keeps each answer's scores, as views of the whole logits.

kind: leak
steps: 200 600
unit: request
"""

import queue
import random
import threading
from dataclasses import dataclass, field

import probe
import torch
from torch import nn


@dataclass
class Answer:
    request: int
    scores: torch.Tensor


@dataclass
class Service:
    model: nn.Module
    inbox: queue.Queue = field(default_factory=queue.Queue)
    audit: list = field(default_factory=list)

    def work(self):
        with torch.no_grad():
            while (item := self.inbox.get()) is not None:
                number, tokens = item
                logits = self.model(tokens.cuda())  # leak
                # Eight numbers of each request; a view keeps all of the logits.
                self.audit.append(Answer(number, logits[0, :8]))
                del logits, tokens, item
                probe.step_end()


def main():
    requests, rng = probe.steps(200), random.Random(7)
    service = Service(nn.Sequential(nn.Embedding(1000, 64), nn.Flatten(1), nn.LazyLinear(4000)).cuda())
    service.model(torch.zeros(1, 12, dtype=torch.long, device="cuda"))
    workers = [threading.Thread(target=service.work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for number in range(requests):
        service.inbox.put((number, torch.zeros(rng.randint(1, 6), 12, dtype=torch.long)))
    for _ in workers:
        service.inbox.put(None)
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
