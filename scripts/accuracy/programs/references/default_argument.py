"""The classic: a mutable default argument collects the embeddings of every call.

kind: leak
steps: 80 240
unit: request
"""

import probe
import torch
from torch import nn

encoder = nn.Sequential(nn.Embedding(2000, 48), nn.Flatten(), nn.Linear(48 * 16, 384)).cuda().eval()


def embed(texts, collected=[]):
    for text in texts:
        tokens = torch.tensor([ord(letter) % 2000 for letter in text.ljust(16)[:16]])[None]
        collected.append(encoder(tokens.cuda()))  # leak
    return torch.cat(collected[-len(texts):])


@torch.no_grad()
def main(documents):
    for number in range(documents):
        vectors = embed([f"document {number}", "its title", "its abstract"])
        vectors @ vectors.T
        probe.step_end()


main(probe.steps(80))
