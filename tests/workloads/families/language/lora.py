"""Low-rank adapters on a frozen GPT-2 of transformers."""

import torch
from torch import nn
from training import options, tokens, train
from transformers import GPT2Config, GPT2LMHeadModel


class Adapted(nn.Module):
    def __init__(self, base, inputs, outputs, rank=8):
        super().__init__()
        self.base, self.down, self.up = base, nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


args = options(batch_size=8, length=256)
model = GPT2LMHeadModel(GPT2Config()).train()
model.requires_grad_(False)
for block in model.transformer.h:
    block.attn.c_attn = Adapted(block.attn.c_attn, 768, 3 * 768)
model.cuda()


def loss_of(model):
    ids = tokens(args.batch_size, args.length, 50257)
    return model(input_ids=ids, labels=ids, use_cache=False).loss


train(model, loss_of, args.steps, autocast=torch.bfloat16)
