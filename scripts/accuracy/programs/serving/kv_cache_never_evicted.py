"""An asyncio chat server: each session's KV cache stays in a dictionary after the session ends.

kind: leak
steps: 300 1000
unit: request
limit: the first block of a session and the later ones come from two lines
"""

import asyncio
import random

import probe
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, cache):
        q, k, v = self.qkv(x).chunk(3, -1)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 1), torch.cat([cache[1], v], 1)  # leak
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v)), (k, v)


class Server:
    def __init__(self):
        self.model = Attention().cuda().eval()
        self.sessions = {}
        self.slots = asyncio.Semaphore(4)

    @torch.inference_mode()
    async def chat(self, session, prompt, answer):
        async with self.slots:
            out, self.sessions[session] = self.model(torch.randn(1, prompt, 64, device="cuda"), None)
            for _ in range(answer):
                last = out[:, -1:]
                out, self.sessions[session] = self.model(last, self.sessions[session])  # leak-or
                await asyncio.sleep(0)
        probe.step_end()


async def main(requests):
    rng, server = random.Random(1), Server()
    waiting = [server.chat(number, rng.randint(4, 60), rng.randint(1, 12)) for number in range(requests)]
    await asyncio.gather(*waiting)


if __name__ == "__main__":
    asyncio.run(main(probe.steps(300)))
