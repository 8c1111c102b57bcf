"""Equal KV pages come from a free list or the allocator; cancelled requests never return theirs.

kind: leak
steps: 60 240
unit: request
every: 4
rate: 98304
"""

import probe
import torch


class Pages:
    def __init__(self):
        self.free, self.owned = [], {}

    def take(self, owner):
        page = self.free.pop() if self.free else torch.empty(16, 2, 8, 128, device="cuda")  # leak
        self.owned.setdefault(owner, []).append(page)
        return page

    def give_back(self, owner):
        self.free.extend(self.owned.pop(owner))


@torch.no_grad()
def generate(pages, request, cancelled):
    for _ in range(3):
        page = pages.take(request)
        for token in range(16):
            page[token] = torch.randn(2, 8, 128, device="cuda")
            if cancelled and token == 5:
                break
    if cancelled:
        return None
    pages.give_back(request)
    return request


pages = Pages()
for request in range(probe.steps(60)):
    generate(pages, request, cancelled=request % 4 == 3)
    probe.step_end()
