"""A mixture of experts with a fixed capacity for each expert, as in Switch Transformers."""

import torch
from torch import nn
from training import options, tokens, train


class Experts(nn.Module):
    def __init__(self, width, count, factor=1.25):
        super().__init__()
        self.count, self.factor, self.router = count, factor, nn.Linear(width, count, bias=False)
        self.inside = nn.Parameter(0.02 * torch.randn(count, width, 4 * width))
        self.outside = nn.Parameter(0.02 * torch.randn(count, 4 * width, width))

    def forward(self, x):
        flat = x.flatten(0, 1)
        capacity = int(self.factor * len(flat) / self.count)
        chance = self.router(flat).softmax(-1)
        weight, expert = chance.max(-1)
        chosen = nn.functional.one_hot(expert, self.count)
        place = (chosen.cumsum(0) * chosen).sum(-1) - 1
        fits = place < capacity
        slots = flat.new_zeros(self.count * capacity + 1, flat.shape[1])
        slot = torch.where(fits, expert * capacity + place, self.count * capacity)
        slots = slots.index_add(0, slot, flat)
        work = slots[:-1].view(self.count, capacity, -1)
        done = torch.bmm(nn.functional.gelu(torch.bmm(work, self.inside)), self.outside)
        done = torch.cat([done.flatten(0, 1), slots.new_zeros(1, flat.shape[1])])
        return (done[slot] * weight[:, None]).view_as(x)


class Model(nn.Module):
    def __init__(self, width, depth, experts, vocabulary=16000):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.mixers = nn.ModuleList(nn.MultiheadAttention(width, width // 64, batch_first=True) for _ in range(depth))
        self.experts = nn.ModuleList(Experts(width, experts) for _ in range(depth))

    def forward(self, ids):
        x = self.embed(ids)
        for mixer, experts in zip(self.mixers, self.experts):
            x = x + mixer(x, x, x, need_weights=False)[0]
            x = x + experts(x)
        return self.head(x)


args = options(batch_size=8, length=256, width=512, depth=4, experts=8)
model = Model(args.width, args.depth, args.experts).cuda()


def loss_of(model):
    ids = tokens(args.batch_size, args.length, 16000)
    return nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())


train(model, loss_of, args.steps)
