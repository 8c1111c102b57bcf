"""Measures what one forward pass needs before renting a GPU. The script ends with the loss alive.

kind: healthy
steps: 1 3
unit: request
"""

import probe
import torch
from torch import nn

layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
model = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).cuda()
head = nn.Linear(256, 4000).cuda()
weights = torch.cuda.memory_allocated()
for _ in range(probe.steps(1)):
    tokens = torch.randn(8, 128, 256, device="cuda")
    logits = head(model(tokens))
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), torch.zeros(8 * 128, dtype=torch.long, device="cuda"))
    probe.step_end()
print(f"weights {weights / 1e6:.0f} MB, activations {(torch.cuda.memory_allocated() - weights) / 1e6:.0f} MB")
