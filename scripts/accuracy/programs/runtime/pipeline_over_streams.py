"""Four fixed streams with events between stages; micro-batches are in flight on all of them.

kind: healthy
steps: 40 120
"""

import probe
import torch
from torch import nn


class Pipeline(nn.Module):
    def __init__(self, stages=4, width=256):
        super().__init__()
        self.stages = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(stages))
        self.streams = [torch.cuda.Stream() for _ in range(stages)]

    def forward(self, micro_batches):
        done = []
        for x in micro_batches:
            event = None
            for stage, stream in zip(self.stages, self.streams):
                with torch.cuda.stream(stream):
                    if event:
                        stream.wait_event(event)
                    x.record_stream(stream)
                    x = stage(x)
                    event = stream.record_event()
            done.append(x)
        for stream in self.streams:
            torch.cuda.current_stream().wait_stream(stream)
        return torch.cat(done)


def main(steps):
    model = Pipeline().cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        out = model(list(torch.randn(64, 256, device="cuda").chunk(4)))
        optimizer.zero_grad()
        out.square().mean().backward()
        optimizer.step()
        probe.step_end()


main(probe.steps(40))
