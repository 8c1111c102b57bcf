"""One pass over one large batch; its end mixes the outputs of all 40 equal layers, as in ELMo.

kind: healthy
steps: 1 3
unit: request
"""

import probe
import torch
from torch import nn


class MixedEncoder(nn.Module):
    def __init__(self, depth=40, width=256):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.mix = nn.Parameter(torch.zeros(depth))

    def forward(self, x):
        outputs = []
        for layer in self.layers:
            x = torch.relu(layer(x))
            outputs.append(x)
        return torch.tensordot(self.mix.softmax(0), torch.stack(outputs), 1)


encoder = MixedEncoder().cuda().eval()
with torch.no_grad():
    for _ in range(probe.steps(1)):
        sentences = torch.randn(8192, 256, device="cuda")
        vectors = encoder(sentences)
        probe.step_end()
print(vectors.shape)
