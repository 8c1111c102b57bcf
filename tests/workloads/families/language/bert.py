"""BERT of transformers, masked language modelling, float16 with scaled gradients."""

import torch
from training import options, tokens
from transformers import BertConfig, BertForMaskedLM

args = options(batch_size=16, length=256)
model = BertForMaskedLM(BertConfig()).cuda().train()
optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=1e-4), torch.amp.GradScaler("cuda")
for step in range(args.steps):
    ids = tokens(args.batch_size, args.length, 30522)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
print("loss", loss.item())
