"""Whole training steps in a CUDA graph: a warm-up on a side stream, a capture, replays."""

import torch
from torch import nn
from training import options

args = options(batch_size=256)
model = nn.Sequential(nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)).cuda()
optimizer = torch.optim.Adam(model.parameters(), capturable=True)
pixels, labels = torch.randn(args.batch_size, 784, device="cuda"), torch.randint(10, (args.batch_size,), device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.cross_entropy(model(pixels), labels)
    loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
for _ in range(args.steps):
    pixels.copy_(torch.randn(args.batch_size, 784))
    graph.replay()
print("loss", loss.item())
