"""A Mixtral of transformers. How many tokens an expert gets depends on the router's output."""

import torch
from training import options, tokens, train
from transformers import MixtralConfig, MixtralForCausalLM

args = options(batch_size=4, length=256)
config = MixtralConfig(hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2,
                       num_local_experts=8, vocab_size=16000)
with torch.device("cuda"):
    model = MixtralForCausalLM(config).train()


def loss_of(model):
    ids = tokens(args.batch_size, args.length, config.vocab_size)
    return model(input_ids=ids, labels=ids, use_cache=False).loss


train(model, loss_of, args.steps)
