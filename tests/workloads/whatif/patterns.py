"""Patterns of requests that are known to fragment PyTorch's allocator, or to fill the card.

usage: patterns.py PATTERN

Sizes are those of the reports that a pattern comes from; nothing is computed.
"""

import random
import sys

import torch
from torch import nn

MIB = 1 << 20
ErrorOnFullCard = torch.cuda.OutOfMemoryError


def block(mib):
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")


def growing_sizes():
    """Each step needs a little more than the one before, so no cached block fits."""
    for step in range(20):
        hidden, logits = block(30 + 2 * step), block(15 + step)
        del hidden, logits


def limited_sizes():
    """`growing_sizes` below a limit that it does not reach."""
    torch.cuda.set_per_process_memory_fraction(0.9)
    growing_sizes()


def loading_weights():
    """vllm#41268: after the expert weights w13 of a layer are converted, a cached block of 530 MiB
    is left over. The 270 MiB of w2 split it, and the rest of 260 MiB serves no layer any more."""
    layers = []
    for _ in range(12):
        checkpoint = block(530)
        w13 = block(530)
        del checkpoint
        w2 = block(270)
        layers.append((w13, w2))


def fenced_cycles():
    """pytorch#193400: with expandable segments and max_split_size_mb, a small block that stays
    alive fences off the memory that each cycle freed."""
    kept = [block(64)]
    for _ in range(101):
        first, second = block(91), block(45.5)
        kept.append(block(2))
        del first, second


def nearly_full():
    """The cache fills the card with sizes that do not return, so it is released again and again."""
    dice = random.Random(1)
    kept = [block(100) for _ in range(4)]
    for _ in range(200):
        batch = [block(dice.randint(10, 200)) for _ in range(3)]
        del batch[dice.randrange(3)]
        small = [torch.empty(dice.randint(1, 300_000), device="cuda") for _ in range(5)]
        del batch, small
    del kept


def full_card():
    """Runs out of memory, and ends."""
    kept = []
    for step in range(1000):
        activations = block(17 + step % 5)
        kept.append(block(33))
        del activations


def halved_batches():
    """Catches an out-of-memory error, and goes on with batches of half the size."""
    size, done = 64, 0
    while done < 20:
        try:
            layers = [block(size * 2) for _ in range(24)]
        except ErrorOnFullCard:
            layers = None
            size //= 2
            torch.cuda.empty_cache()
            continue
        del layers
        done += 1


def growing_caches():
    """Serves requests with a key-value cache that is copied to a larger block at each token."""
    dice, running = random.Random(2), []
    for _ in range(150):
        if len(running) < 6:
            running.append([torch.empty(dice.randint(50, 400), 2, 8, 64, device="cuda"), dice.randint(5, 40)])
        for request in running:
            request[0] = torch.cat([request[0], torch.empty(16, 2, 8, 64, device="cuda")])
            request[1] -= 1
        running = [request for request in running if request[1]]


def varying_batches():
    """Trains with batches of another size and sequence length at each step."""
    dice = random.Random(3)
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(25):
        inputs = torch.randn(dice.randint(1, 24), dice.randint(16, 300), 256, device="cuda")
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def phases():
    """Training and validation need other sizes; the cache is emptied between them."""
    dice = random.Random(4)
    model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(4):
        for _ in range(5):
            model(torch.randn(512 * dice.randint(1, 6), 1024, device="cuda")).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            for _ in range(3):
                model(torch.randn(4096 * dice.randint(1, 3), 1024, device="cuda"))
        torch.cuda.empty_cache()


def two_streams():
    """Blocks of many sizes are made on one stream, used on another, and freed in between."""
    dice, side, queue = random.Random(5), torch.cuda.Stream(), []
    for _ in range(300):
        batch = block(dice.choice([0.25, 0.7, 3, 9, 18, 33]) * dice.uniform(0.5, 1))
        with torch.cuda.stream(side):
            side.wait_stream(torch.cuda.default_stream())
            queue.append(batch + 1)
        batch.record_stream(side)
        del batch
        if len(queue) > 8:
            queue.pop(dice.randrange(8))


def kept_results():
    """Small results stay alive in the segments of large temporary blocks."""
    dice, results = random.Random(6), []
    for _ in range(120):
        temporary = [block(dice.uniform(1, 60)) for _ in range(dice.randint(1, 6))]
        results.append(block(dice.uniform(0.1, 4)))
        dice.shuffle(temporary)
        while temporary:
            temporary.pop()
        if len(results) > 60:
            results.pop(dice.randrange(60))


globals()[sys.argv[1]]()
