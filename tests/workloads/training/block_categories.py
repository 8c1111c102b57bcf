"""A training that writes the category of each of its blocks: the truth for categories at the peak.

usage: block_categories.py MODEL OPTIMIZER --truth FILE [--steps N]

It trains the same model on two devices. On the first the peak falls where it falls. On the second
the program allocates a large tensor between optimizer.step() and `zero_grad`, so that gradients,
optimizer state and parameters are live at the peak.

The truth is [device, address, events, category]: the tensor's storage was at that address after so
many allocations and frees of PyTorch's allocator. A forward pass is [device, begin, end] in events.
"""

import argparse
import json

import torch
from torch import nn

from models import Mlp, ResNet18, Transformer

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("optimizer", choices=["sgd", "adamw", "rmsprop", "adafactor", "adagrad"])
parser.add_argument("--truth", required=True)
parser.add_argument("--steps", type=int, default=5)
args = parser.parse_args()

# The simulated cuDNN has no plans for attention and recurrent networks.
torch.backends.cuda.enable_cudnn_sdp(False)
torch.backends.cudnn.enabled = args.model != "lstm"
truth, passes = [], []


class Lstm(nn.Module):
    """A recurrent classifier of token sequences."""

    input_shape = (16, 24)
    classes = 10

    def __init__(self, device):
        super().__init__()
        self.words = nn.Embedding(500, 96, device=device)
        self.cells = nn.LSTM(96, 128, 2, batch_first=True, device=device)
        self.head = nn.Linear(128, self.classes, device=device)

    def forward(self, x):
        features, _ = self.cells(self.words(x))
        return self.head(features[:, -1])


class Layer(nn.Module):
    """A decoder layer that creates its own parameters."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.mix(self.norms[0](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width)) * self.scale
        return x + self.wide(self.norms[1](x))


class Gpt(nn.Module):
    """A small decoder-only transformer."""

    input_shape = (8, 32)
    classes = 200

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(self.classes, 128)
        self.places = nn.Parameter(torch.zeros(32, 128))
        self.layers = nn.Sequential(*[Layer(128, 4) for _ in range(3)])
        self.head = nn.Linear(128, self.classes, bias=False)

    def forward(self, x):
        return self.head(self.layers(self.words(x) + self.places)).mean(1)


def build(device):
    """Each model is moved to its device in another way."""
    if args.model == "mlp":
        return Mlp().to(device)
    if args.model == "resnet18":
        with device:
            return ResNet18()
    if args.model == "transformer":
        return Transformer().cuda(device)
    if args.model == "lstm":
        return Lstm(device)
    return Gpt().to(device=device, non_blocking=True)


def optimizer_of(model):
    parameters = list(model.parameters())
    if args.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)
    if args.optimizer == "adamw":
        groups = [{"params": parameters[::2]}, {"params": parameters[1::2], "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=0.001)
    if args.optimizer == "rmsprop":
        return torch.optim.RMSprop(parameters, lr=0.01, foreach=False)
    if args.optimizer == "adagrad":
        return torch.optim.Adagrad(parameters, foreach=False)
    return torch.optim.Adafactor(parameters)


def events(device):
    counts = torch._C._cuda_memoryStats(device.index)["allocation"]["all"]
    return counts["allocated"] + counts["freed"]


def note(device, kind, tensors):
    at = events(device)
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and tensor.device == device:
            truth.append([device.index, tensor.untyped_storage().data_ptr(), at, kind])


def train(device, is_spiky):
    model = build(device)
    optimizer = optimizer_of(model)
    amp = args.model == "gpt"
    scaler = torch.amp.GradScaler("cuda", enabled=amp)
    criterion = nn.CrossEntropyLoss()
    for _ in range(args.steps):
        for _ in range(2 if args.optimizer == "sgd" else 1):
            if args.model in ("lstm", "gpt"):
                inputs = torch.zeros(model.input_shape, dtype=torch.long).to(device)
            else:
                inputs = torch.randn(model.input_shape).to(device)
            labels = torch.zeros(model.input_shape[0], dtype=torch.long).to(device)
            note(device, "inputs", [inputs, labels])
            begin = events(device)
            with torch.autocast("cuda", enabled=amp, dtype=torch.float16):
                loss = criterion(model(inputs), labels)
            passes.append([device.index, begin, events(device)])
            scaler.scale(loss).backward()
            note(device, "gradients", [parameter.grad for parameter in model.parameters()])
        scaler.step(optimizer)
        scaler.update()
        note(device, "optimizer_state", [part for state in optimizer.state.values() for part in state.values()])
        note(device, "parameters", [*model.parameters(), *model.buffers()])
        if is_spiky:
            spike = torch.empty(64 << 20, device=device)
            del spike
        optimizer.zero_grad(set_to_none=args.optimizer != "rmsprop")


for index in range(2):
    torch.cuda.set_device(index)
    train(torch.device("cuda", index), is_spiky=index == 1)
with open(args.truth, "w", encoding="utf-8") as file:
    json.dump({"truth": truth, "passes": passes}, file)
print("trained")
