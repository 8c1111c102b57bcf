"""A thread for each client that waits for a next message forever, with the last answer in a local.

kind: leak
steps: 60 180
unit: request
"""

import queue
import threading

import probe
import torch
from torch import nn

model = nn.Sequential(nn.Linear(300, 600), nn.ReLU(), nn.Linear(600, 900)).cuda().requires_grad_(False)


class Client(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.inbox, self.answered = queue.Queue(), threading.Event()

    def run(self):
        while True:
            message = self.inbox.get()
            answer = model(message.cuda())  # leak
            answer.argmax(-1).tolist()
            self.answered.set()


def main():
    for _ in range(probe.steps(60)):
        client = Client()
        client.start()
        client.inbox.put(torch.randn(20, 300))
        client.answered.wait()
        probe.step_end()


main()
