"""Training loops with different step sources. The last line of output is the true number of steps.

  plain      only an optimizer
  amp        the same under autocast, with a GradScaler
  accumulate an optimizer step every fourth batch
  gan        two optimizers, called in turn
  ranges     batches are NVTX ranges inside epochs and around their parts; no optimizer
  marks      gpumemtrace_step() through ctypes; no optimizer
  serve      inference: steps can only be found by repetition
phases     training and evaluation call gpumemtrace_phase_begin(); the --phases file gets PyTorch's
             numbers per phase: [name, bytes at begin, peak bytes, bytes at end]
"""

import argparse
import contextlib
import ctypes
import json

import torch
from torch import nn

from models import MODELS, batch

parser = argparse.ArgumentParser()
parser.add_argument("way")
parser.add_argument("--model", choices=sorted(MODELS), default="mlp")
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--leak", action="store_true")
parser.add_argument("--phases", help="where to write PyTorch's numbers of phases")
args = parser.parse_args()

device = torch.device("cuda")
model = MODELS[args.model]().to(device)
criterion = nn.CrossEntropyLoss()
kept = []


def backward(scale=1.0):
    inputs, labels = batch(model, device)
    loss = criterion(model(inputs), labels)
    (loss * scale).backward()
    if args.leak:
        kept.append(torch.empty(1024, device=device))  # the planted leak


def plain(amp=False, accumulate=1):
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cuda", enabled=amp)
    for _ in range(args.steps):
        for _ in range(accumulate):
            with torch.autocast("cuda", enabled=amp):
                inputs, labels = batch(model, device)
                loss = criterion(model(inputs), labels) / accumulate
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def gan():
    noise, width = 32, 64
    generator = nn.Sequential(nn.Linear(noise, 128), nn.ReLU(), nn.Linear(128, width)).cuda()
    critic = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 1)).cuda()
    of_generator = torch.optim.Adam(generator.parameters())
    of_critic = torch.optim.Adam(critic.parameters())
    judge = nn.BCEWithLogitsLoss()
    for _ in range(args.steps):
        real, made = torch.randn(16, width, device=device), generator(torch.randn(16, noise, device=device))
        of_critic.zero_grad()
        (judge(critic(real), torch.ones(16, 1, device=device)) + judge(critic(made.detach()), torch.zeros(16, 1, device=device))).backward()
        of_critic.step()
        of_generator.zero_grad()
        judge(critic(made), torch.ones(16, 1, device=device)).backward()
        of_generator.step()


def ranges():
    nvtx = torch.cuda.nvtx
    for epoch in range(3):
        assert nvtx.range_push(f"epoch {epoch}") == -2, "as without a tool"
        for index in range(args.steps // 3):
            with nvtx.range(f"train step {index}"):
                with nvtx.range("forward and backward of a micro-batch"):
                    backward()
        nvtx.range_pop()


def marks():
    step = ctypes.CDLL(None).gpumemtrace_step
    for _ in range(args.steps):
        step()
        backward()


def serve():
    model.eval()
    with torch.inference_mode():
        for _ in range(args.steps):
            inputs, _ = batch(model, device)
            model(inputs).softmax(-1).cpu()


@contextlib.contextmanager
def phase(name, output):
    library = ctypes.CDLL(None)
    library.gpumemtrace_phase_begin(name.encode())
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    yield
    output.append([name, before, torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()])
    library.gpumemtrace_phase_end()


def phases():
    results = []
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(3):
        with phase("train", results):
            for _ in range(args.steps // 3):
                backward()
                optimizer.step()
                optimizer.zero_grad()
        with phase(f"eval of epoch {epoch}", results), torch.no_grad():
            inputs, _ = batch(model, device)
            kept.append(model(inputs))
    with open(args.phases, "w", encoding="utf-8") as file:
        json.dump(results, file)


WAYS = {
    "plain": plain,
    "amp": lambda: plain(amp=True),
    "accumulate": lambda: plain(accumulate=4),
    "gan": gan,
    "ranges": ranges,
    "marks": marks,
    "serve": serve,
    "phases": phases,
}
WAYS[args.way]()
print(args.steps)
