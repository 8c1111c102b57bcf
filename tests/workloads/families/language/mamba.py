"""A Mamba of transformers with its scan in plain PyTorch."""

from training import options, tokens, train
from transformers import MambaConfig, MambaForCausalLM

args = options(batch_size=4, length=128)
model = MambaForCausalLM(MambaConfig(hidden_size=512, num_hidden_layers=4, vocab_size=16000)).cuda().train()


def loss_of(model):
    ids = tokens(args.batch_size, args.length, 16000)
    return model(input_ids=ids, labels=ids).loss


train(model, loss_of, args.steps)
