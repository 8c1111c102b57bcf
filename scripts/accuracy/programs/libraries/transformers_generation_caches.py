"""Generates with GPT-2 and keeps the outputs, with `past_key_values`, of every prompt.

kind: leak
steps: 24
unit: request
needs: transformers
"""

import random
import types

import probe
import torch
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel


@torch.no_grad()
def continue_text(model, prompt, new):
    cache, tokens = DynamicCache(), prompt
    for _ in range(new):
        out = model(tokens, past_key_values=cache, use_cache=True)  # leak
        tokens = out.logits[:, -1:].argmax(-1)
    return types.SimpleNamespace(tokens=tokens, cache=cache)


def main():
    rng = random.Random(1)
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=128, n_head=4, vocab_size=500)).cuda().eval()
    results = {}
    for number in range(probe.steps(24)):
        prompt = torch.zeros(1, rng.randint(5, 100), dtype=torch.long, device="cuda")
        results[number] = continue_text(model, prompt, rng.randint(2, 10))
        probe.step_end()


main()
