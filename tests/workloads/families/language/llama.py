"""A Llama of transformers from a config: grouped queries, bfloat16 weights, checkpointed layers."""

import torch
from training import options, tokens, train
from transformers import LlamaConfig, LlamaForCausalLM

args = options(batch_size=2, length=1024, width=1024, depth=8)
config = LlamaConfig(hidden_size=args.width, intermediate_size=args.width * 7 // 2, num_hidden_layers=args.depth, vocab_size=32000,
                     num_attention_heads=args.width // 64, num_key_value_heads=args.width // 256, max_position_embeddings=args.length)
with torch.device("cuda"):
    model = LlamaForCausalLM(config).to(torch.bfloat16)
model.gradient_checkpointing_enable()
model.train()


def loss_of(model):
    ids = tokens(args.batch_size, args.length, config.vocab_size)
    return model(input_ids=ids, labels=ids, use_cache=False).loss


train(model, loss_of, args.steps)
