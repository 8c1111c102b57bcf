"""Fine-tunes BERT with `accelerate`, a linear schedule with warm-up, and dynamic padding.

kind: healthy
steps: 30
needs: transformers accelerate
"""

import random

import probe
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup


def pad(samples):
    longest = max(map(len, samples))
    ids = torch.stack([torch.nn.functional.pad(sample, (0, longest - len(sample))) for sample in samples])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.zeros(len(ids), dtype=torch.long)}


def main(steps):
    rng, accelerator = random.Random(2), Accelerator()
    texts = [torch.ones(rng.randint(5, 120), dtype=torch.long) for _ in range(8 * steps)]
    model = BertForSequenceClassification(BertConfig(num_hidden_layers=2, hidden_size=128, num_attention_heads=4, intermediate_size=256,
                                                     vocab_size=1000))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(texts, batch_size=8, collate_fn=pad))
    schedule = get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
    for batch in loader:
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        probe.step_end()


main(probe.steps(30))
