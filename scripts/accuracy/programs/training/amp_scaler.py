"""Mixed precision with a GradScaler, gradient clipping and channels-last convolutions.

kind: healthy
steps: 30 100
"""

import probe
import torch
from torch import nn


@torch.no_grad()
def accuracy(model, batches=3):
    model.eval()
    right = [model(torch.randn(16, 3, 32, 32, device="cuda")).argmax(1) == 0 for _ in range(batches)]
    model.train()
    return torch.cat(right).float().mean().item()


model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.AdaptiveAvgPool2d(1),
    nn.Flatten(), nn.Linear(64, 10)
).cuda().to(memory_format=torch.channels_last)
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda")
for step in range(probe.steps(30)):
    images = torch.randn(32, 3, 32, 32).cuda().to(memory_format=torch.channels_last)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(images), torch.zeros(32, dtype=torch.long, device="cuda"))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    if step % 8 == 7:
        accuracy(model)
    probe.step_end()
