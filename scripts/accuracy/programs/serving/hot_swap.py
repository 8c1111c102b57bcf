"""Serves a recommender and replaces its weights every 40 requests, as a continuous deployment does.

kind: healthy
steps: 200 600
unit: request
"""

import io
import random

import probe
import torch
from torch import nn


def build():
    return nn.ModuleDict({
        "users": nn.EmbeddingBag(5000, 32, mode="sum"), "products": nn.Embedding(5000, 32), "score": nn.Linear(64, 1)
    })


def publish():
    """The trainer's side: a checkpoint as bytes."""
    file = io.BytesIO()
    torch.save(build().state_dict(), file)
    return file.getvalue()


def deploy(data):
    model = build().cuda().eval()
    model.load_state_dict(torch.load(io.BytesIO(data), map_location="cuda"))
    return model


@torch.no_grad()
def recommend(model, history, candidates):
    user = model["users"](history, torch.zeros(1, dtype=torch.long, device="cuda"))
    items = model["products"](candidates)
    return model["score"](torch.cat([user.expand(len(items), -1), items], 1)).flatten().topk(5).indices


rng, data = random.Random(14), publish()
for request in range(probe.steps(200)):
    if request % 40 == 0:
        model = deploy(data)
    history = torch.zeros(rng.randint(1, 80), dtype=torch.long).cuda()
    recommend(model, history, torch.zeros(rng.randint(50, 300), dtype=torch.long).cuda())
    probe.step_end()
