"""What the families share: options of the command line, and the loop that trains."""

import argparse

import torch


def options(**defaults):
    """Reads `--steps` and one option for each default, such as `--batch-size` for `batch_size`."""
    parser = argparse.ArgumentParser()
    for name, value in {"steps": 5, **defaults}.items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    return parser.parse_args()


def train(model, loss_of, steps, make_optimizer=torch.optim.AdamW, autocast=None):
    """Trains for some steps. `loss_of(model)` makes a batch and returns its loss."""
    optimizer = make_optimizer([parameter for parameter in model.parameters() if parameter.requires_grad], lr=1e-4)
    for step in range(steps):
        with torch.autocast("cuda", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
            loss = loss_of(model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    print("step", step, "loss", loss.item())


def images(count, size, classes=1000):
    """A batch of images and their labels, copied from the host as a data loader does."""
    return torch.randn(count, 3, size, size).cuda(), torch.randint(classes, (count,)).cuda()


def tokens(count, length, vocabulary):
    return torch.randint(vocabulary, (count, length)).cuda()
