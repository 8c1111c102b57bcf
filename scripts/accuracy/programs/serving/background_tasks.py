"""Fire-and-forget tasks kept in a set against garbage collection; done ones are not discarded.

kind: leak
steps: 200 600
unit: request
"""

import asyncio
import random

import probe
import torch
from torch import nn

background = set()
model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 64)).cuda().requires_grad_(False)


async def embed(length):
    x = torch.randn(length, 128, device="cuda")
    await asyncio.sleep(0)
    return model(x)  # leak


async def handle(number, length):
    task = asyncio.create_task(embed(length))
    # The documentation's recipe, without `task.add_done_callback(background.discard)`.
    background.add(task)
    await asyncio.sleep(0.0005 if number % 7 else 0.004)
    probe.step_end()


async def main(requests):
    rng = random.Random(6)
    for number in range(requests):
        await handle(number, rng.randint(16, 256))
    await asyncio.gather(*background)


asyncio.run(main(probe.steps(200)))
