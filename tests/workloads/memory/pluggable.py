"""Trains on gpumemtrace's allocator, leaks one clone per step, and survives an OOM error."""

import sys

import torch

allocator = torch.cuda.memory.CUDAPluggableAllocator(sys.argv[1], "gpumemtrace_malloc", "gpumemtrace_free")
torch.cuda.memory.change_current_allocator(allocator)

model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.Adam(model.parameters())
kept = []
for _ in range(15):
    optimizer.zero_grad()
    output = model(torch.randn(32, 256, device="cuda"))
    output.sum().backward()
    optimizer.step()
    kept.append(output.detach().clone())  # the planted leak
try:
    torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
except RuntimeError as error:
    assert "CUDA out of memory" in str(error), error
    print("refused")
torch.ones(1000, device="cuda")
print("went on")
