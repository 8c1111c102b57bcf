"""DistributedDataParallel with one rank: buckets, `no_sync()` and a gathered metric.

kind: healthy
steps: 40
without: async nocache
"""

import contextlib
import os
import tempfile

import probe
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main(steps):
    with tempfile.NamedTemporaryFile() as file:
        dist.init_process_group("nccl", init_method=f"file://{file.name}", rank=0, world_size=1, device_id=torch.device("cuda", 0))
        model = DistributedDataParallel(nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 128)).cuda(), device_ids=[0])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(steps):
            for last in (False, True):
                with contextlib.nullcontext() if last else model.no_sync():
                    x = torch.randn(32, 128, device="cuda")
                    loss = (model(x) - x).square().mean()
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            gathered = [torch.empty_like(loss)]
            dist.all_gather(gathered, loss.detach())
            probe.step_end()
        dist.destroy_process_group()


if __name__ == "__main__":
    # DDP reads the sizes of parameters back from the GPU; the simulated one must keep them.
    os.environ.setdefault("SIMGPU_COPY", "small")
    main(probe.steps(40))
