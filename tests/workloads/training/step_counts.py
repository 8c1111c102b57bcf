"""Loops of many kinds. The last line of output is the number of times that the outermost loop ran.

  step_counts.py optimizer KIND ORDER GRADIENTS MICRO_BATCHES [amp]
      ORDER is where zero_grad() is called: top, middle or end; GRADIENTS is none or zero.
  step_counts.py LOOP
      a function below, without an optimizer
"""

import queue
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

STEPS = 20
torch.manual_seed(0)
device = torch.device("cuda")
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)).to(device)
encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 3).to(device).eval()
kept = []
optim = torch.optim
OPTIMIZERS = {
    "sgd": lambda parameters: optim.SGD(parameters, 0.01),
    "momentum": lambda parameters: optim.SGD(parameters, 0.01, momentum=0.9),
    "adam": optim.Adam,
    "adamw_fused": lambda parameters: optim.AdamW(parameters, fused=True),
    "adam_forloop": lambda parameters: optim.Adam(parameters, foreach=False),
    "rmsprop": optim.RMSprop,
}


def optimizer(kind, order, gradients, micro_batches, amp=""):
    optimizer = OPTIMIZERS[kind](model.parameters())
    scaler = torch.amp.GradScaler("cuda", enabled=bool(amp))
    to_none = gradients == "none"
    for _ in range(STEPS):
        if order == "top":
            optimizer.zero_grad(set_to_none=to_none)
        for index in range(int(micro_batches)):
            loss = model(torch.randn(32, 64, device=device)).square().mean()
            if order == "middle" and index == 0:
                optimizer.zero_grad(set_to_none=to_none)
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if order == "end":
            optimizer.zero_grad(set_to_none=to_none)
    return STEPS


def gan():
    critic, generator = nn.Linear(64, 1).to(device), nn.Linear(16, 64).to(device)
    of_critic, of_generator = optim.SGD(critic.parameters(), 0.1), optim.SGD(generator.parameters(), 0.1)
    for _ in range(STEPS):
        of_critic.zero_grad()
        made = generator(torch.randn(8, 16, device=device))
        (critic(made.detach()).mean() - critic(torch.randn(8, 64, device=device)).mean()).backward()
        of_critic.step()
        of_generator.zero_grad()
        (-critic(made).mean()).backward()
        of_generator.step()
    return STEPS


def requests_of_varying_shape():
    for request in range(40):
        inputs = torch.randn(1, 3 + request * 7919 % 13, 64, device=device)
        encoder(inputs).softmax(-1).cpu()
    return 40


def two_parts_per_request():
    for request in range(40):
        rows = 3 + request * 7919 % 13
        for part in ("text", "image"):
            if part == "text":
                features = torch.empty(rows, 64, device=device)
            else:
                features = torch.empty(2 * rows, 64, device=device)
            kept.append(features.sum(0))
    return 40


def generation():
    for request in range(30):
        tokens = torch.randn(1, 64, device=device)
        for _ in range(2 + request * 31 % 17):
            tokens = torch.cat([tokens, model(tokens[-1:])])
        tokens.sum(0)
    return 30


def epochs_of_batches():
    for _ in range(3):
        total = torch.zeros(1, device=device)
        for _ in range(20):
            total = total + model(torch.randn(8, 64, device=device)).sum()
    return 60  # three epochs are too few


def evaluation_inside():
    for step in range(60):
        result = model(torch.randn(8, 64, device=device)) * 2
        if step % 15 == 14:
            for _ in range(5):
                result = model(torch.randn(16, 64, device=device)).mean()
    return 60 if result is not None else 0


def loader_thread():
    batches = queue.Queue(4)

    def load():
        for _ in range(50):
            batches.put(torch.randn(8, 64, device=device))
        batches.put(None)

    thread = threading.Thread(target=load)
    thread.start()
    while (batch := batches.get()) is not None:
        kept.append((model(batch) * 2).sum())
    thread.join()
    return 50


def worker_threads():
    def handle(rows):
        with torch.inference_mode():
            return model(torch.randn(rows, 64, device=device)).sum().item()

    with ThreadPoolExecutor(3) as workers:
        list(workers.map(handle, [3 + index % 5 for index in range(90)]))
    return 90


def list_of_buffers():
    kept.extend([torch.empty(1000, device=device) for _ in range(100)])
    return 0


way, *rest = sys.argv[1:]
with torch.set_grad_enabled(way in ("optimizer", "gan")):
    print(globals()[way](*rest))
