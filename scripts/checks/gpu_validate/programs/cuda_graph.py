"""Captures a CUDA graph, replays it three times, and reports statistics and segments."""

from witness import *  # noqa: F403
import torch
model, inputs, labels = build("mlp")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        model(inputs).sum().backward()
torch.cuda.current_stream().wait_stream(side)
begin = stats()
graph = torch.cuda.CUDAGraph()
model.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    output = model(inputs)
    output.sum().backward()
kept = [torch.empty(1000, device="cuda")]
for _ in range(3):
    graph.replay()
torch.cuda.synchronize()
counted = stats()
snapshot = torch.cuda.memory._snapshot()
private = [one["address"] for one in snapshot["segments"] if tuple(one.get("segment_pool_id", (0, 0))) != (0, 0)]
emit(begin=begin, stats=counted, segments=segments(snapshot), private=private)
exit_now()
