"""Perplexity with a sliding window; the negative log-likelihoods stay on the GPU until the end.

kind: leak
steps: 60 200
unit: request
rate: 512
"""

import probe
import torch
from torch import nn


class LanguageModel(nn.Module):
    def __init__(self, vocabulary=1000):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocabulary, 64), nn.Linear(64, vocabulary)

    def forward(self, tokens, labels):
        logits = self.head(self.embed(tokens))
        flat = logits[:, :-1].flatten(0, 1)
        return nn.functional.cross_entropy(flat, labels[:, 1:].flatten())  # leak


def perplexity(model, tokens, window=256, stride=64):
    likelihoods = []
    for begin in range(0, tokens.shape[1] - window, stride):
        chunk = tokens[:, begin:begin + window].to("cuda")
        labels = chunk.clone()
        labels[:, :-stride] = -100
        with torch.no_grad():
            loss = model(chunk, labels)  # leak-or
        likelihoods.append(loss)
        probe.step_end()
    return torch.stack(likelihoods).mean().exp()


windows = probe.steps(60)
print(perplexity(LanguageModel().cuda(), torch.zeros(1, 256 + 64 * windows, dtype=torch.long)).item())
