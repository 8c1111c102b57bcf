"""A healthy training assembled from a seed; nothing in it leaks.

usage: healthy.py SEED [--steps N]
"""

import argparse
import contextlib
import copy
import random
from collections import deque

import torch
from torch import nn

from models import MODELS

parser = argparse.ArgumentParser()
parser.add_argument("seed", type=int)
parser.add_argument("--steps", type=int)
args = parser.parse_args()

dice = random.Random(args.seed)
steps = args.steps or dice.choice([5, 6, 8, 12, 20, 30, 45])
device = torch.device("cuda")
# The simulated cuDNN has no plans for attention.
torch.backends.cuda.enable_cudnn_sdp(False)
model = MODELS[dice.choice(["mlp", "mlp", "transformer", "resnet18"])]().to(device)
optimizer = dice.choice([
    lambda: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
    lambda: torch.optim.Adam(model.parameters()),
    lambda: torch.optim.AdamW(model.parameters(), foreach=False),
])()
amp, varies, outer_autocast = dice.random() < 0.4, dice.random() < 0.5, dice.random() < 0.3
accumulate, evaluate_every = dice.choice([1, 1, 2, 4]), dice.choice([0, 3, 7])
average_from = dice.choice([0, 0, steps // 2])
recent = deque(maxlen=dice.choice([1, 2, max(1, steps // 4)]))
cache, keys = {}, max(1, steps // 6)
scaler = torch.amp.GradScaler("cuda", enabled=amp)
criterion = nn.CrossEntropyLoss()
best, average, longest = None, None, None


def inputs_and_labels():
    size, *shape = model.input_shape
    if varies:
        size = dice.randint(max(2, size // 2), size)
    return torch.randn(size, *shape).to(device), torch.zeros(size, dtype=torch.long).to(device)


with torch.autocast("cuda", enabled=amp and outer_autocast):
    for step in range(steps):
        for _ in range(accumulate):
            inputs, labels = inputs_and_labels()
            with torch.autocast("cuda", enabled=amp):
                outputs = model(inputs)
                loss = criterion(outputs, labels) / accumulate
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=dice.random() < 0.99)
        recent.append(outputs.detach())
        key = dice.randrange(keys)
        if key not in cache:
            cache[key] = torch.empty(1024 * (key + 1), device=device)
        if longest is None or len(inputs) > len(longest):
            longest = torch.empty_like(inputs)
        if average_from and step >= average_from and average is None:
            average = copy.deepcopy(model)
        if evaluate_every and step % evaluate_every == evaluate_every - 1:
            model.eval()
            with torch.no_grad(), contextlib.suppress(StopIteration):
                gathered = [model(inputs_and_labels()[0]) for _ in range(3)]
                score = float(torch.cat(gathered).float().mean().cpu())
            del gathered
            model.train()
            if best is None or score >= best[0]:
                best = (score, {name: value.clone() for name, value in model.state_dict().items()})
print("trained", steps, "steps")
