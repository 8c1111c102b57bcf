"""Loops with iterations that take different paths: mostly servers. A request leaks 4,096 bytes.
The last line of output is the number of requests.

  request_loops.py LOOP [REQUESTS]      a function below
"""

import asyncio
import queue
import random
import sys
import threading
from collections import deque

import torch

KINDS = ("embed", "rank", "search")
device = torch.device("cuda")
weight = torch.randn(64, 64, device=device)
dice = random.Random(0)
leaked = []


def leak():
    leaked.append(torch.empty(4096, dtype=torch.uint8, device=device))


def embed(rows):
    hidden = torch.randn(rows, 64, device=device)
    for _ in range(1 + rows % 4):
        hidden = torch.relu(hidden @ weight)
    leak()
    return hidden.mean(0)


def rank(rows):
    scores = torch.ones(rows, device=device)
    leak()
    return scores.softmax(0)


def search(rows):
    leak()
    keys = torch.zeros(rows, 64, device=device)
    found = (keys @ weight).topk(2).values
    return found.sum(1)


HANDLERS = {"embed": embed, "rank": rank, "search": search}


def draw_requests(number):
    return [(dice.choice(KINDS), dice.randint(2, 40)) for _ in range(number)]


def handle(kind, rows):
    if kind == "embed":
        return embed(rows)
    if kind == "rank":
        return rank(rows)
    return search(rows)


def routes(number):
    for kind, rows in draw_requests(number):
        result = handle(kind, rows)
        result.cpu()


def table(number):
    for kind, rows in draw_requests(number):
        result = HANDLERS[kind](rows)
        result.cpu()


class Request:
    def __init__(self, rows):
        self.rows = rows


class Embed(Request):
    def run(self):
        return embed(self.rows)


class Rank(Request):
    def run(self):
        return rank(self.rows)


class Search(Request):
    def run(self):
        return search(self.rows)


def methods(number):
    classes = {"embed": Embed, "rank": Rank, "search": Search}
    for kind, rows in draw_requests(number):
        classes[kind](rows).run().cpu()


def work(requests):
    while True:
        request = requests.get()
        if request is None:
            return
        kind, rows = request
        result = HANDLERS[kind](rows)
        result.cpu()


def threads(number):
    requests = queue.Queue(4)
    workers = [threading.Thread(target=work, args=(requests,)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for request in draw_requests(number) + [None] * 3:
        requests.put(request)
    for worker in workers:
        worker.join()


async def embed_in_parts(rows):
    hidden = torch.randn(rows, 64, device=device)
    await asyncio.sleep(0)
    leak()
    for _ in range(1 + rows % 4):
        hidden = torch.relu(hidden @ weight)
        await asyncio.sleep(0)
    return hidden.mean(0)


async def rank_in_parts(rows):
    leak()
    await asyncio.sleep(0)
    return torch.ones(rows, device=device).softmax(0)


COROUTINES = {"embed": embed_in_parts, "rank": rank_in_parts}


async def measure(is_done):
    while not is_done.is_set():
        sample = torch.ones(8, device=device)
        await asyncio.sleep(0)
        sample.sum().item()


async def serve(requests):
    while (request := await requests.get()) is not None:
        kind, rows = request
        result = await COROUTINES[kind](rows)
        result.cpu()


async def run_server(number, has_measurements=False, servers=1):
    requests, is_done = asyncio.Queue(), asyncio.Event()
    for kind, rows in draw_requests(number):
        requests.put_nowait((kind if kind in COROUTINES else "rank", rows))
    for _ in range(servers):
        requests.put_nowait(None)
    other = asyncio.create_task(measure(is_done)) if has_measurements else None
    await asyncio.gather(*(serve(requests) for _ in range(servers)))
    is_done.set()
    if other:
        await other


def coroutine(number):
    asyncio.run(run_server(number))


def coroutine_and_other_task(number):
    asyncio.run(run_server(number, has_measurements=True))


def interleaved_coroutines(number):
    asyncio.run(run_server(number, servers=4))


class Engine:
    """A scheduler with continuous batching: a step fills the caches of new sequences, or else
    computes a token for each sequence."""

    def __init__(self, number):
        self.waiting = deque(dice.randint(2, 40) for _ in range(number))
        self.running = []

    def add_sequences(self):
        batch = [self.waiting.popleft() for _ in range(min(len(self.waiting), dice.randint(1, 3)))]
        tokens = torch.ones(sum(batch), 64, device=device)
        leak()
        for length in batch:
            self.running.append([dice.randint(1, 6), torch.zeros(length, 64, device=device)])
        return (tokens @ weight).argmax(1)

    def decode(self):
        leak()
        last = torch.stack([cache.sum(0) for _, cache in self.running])
        for sequence in self.running:
            sequence[0] -= 1
        self.running = [sequence for sequence in self.running if sequence[0] > 0]
        return last.argmax(1)

    def step(self):
        if self.waiting and (not self.running or dice.random() < 0.4):
            return self.add_sequences()
        return self.decode()

    def is_busy(self):
        return bool(self.waiting or self.running)


def scheduler(number):
    engine, steps = Engine(number), 0
    while engine.is_busy():
        tokens = engine.step()
        tokens.tolist()
        steps += 1
    return steps


def optional_stages(number):
    """An iteration has up to three stages in a fixed order."""
    for _ in range(number):
        for stage in HANDLERS.values():
            if dice.random() < 0.5:
                result = stage(dice.randint(2, 40))
                result.cpu()


def branches(number):
    """The calls could be two parts of one iteration."""
    for kind, rows in draw_requests(number):
        if kind == "search":
            result = search(rows)
        else:
            result = rank(rows)
        result.cpu()


if __name__ == "__main__":
    number = int(sys.argv[2]) if len(sys.argv) > 2 else 300
    with torch.no_grad():
        steps = globals()[sys.argv[1]](number)
    print(steps or number)
