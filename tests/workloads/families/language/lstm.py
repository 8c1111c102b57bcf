"""A language model with cuDNN's LSTM; its states go on from step to step."""

import torch
from torch import nn
from training import options, tokens, train


class Model(nn.Module):
    def __init__(self, width=1024, vocabulary=20000):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.lstm = nn.LSTM(width, width, num_layers=2, dropout=0.2, batch_first=True)

    def forward(self, ids, state):
        x, state = self.lstm(self.embed(ids), state)
        return self.head(x), state


args = options(batch_size=32, length=128)
model, state = Model().cuda(), None


def loss_of(model):
    global state
    ids = tokens(args.batch_size, args.length, 20000)
    logits, new = model(ids, state)
    state = tuple(part.detach() for part in new)
    return nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())


train(model, loss_of, args.steps)
