"""T5 of transformers: encoder, decoder, cross attention."""

from training import options, tokens, train
from transformers import T5Config, T5ForConditionalGeneration

args = options(batch_size=8, length=256)
model = T5ForConditionalGeneration(T5Config(decoder_start_token_id=0)).cuda().train()


def loss_of(model):
    return model(input_ids=tokens(args.batch_size, args.length, 32128), labels=tokens(args.batch_size, args.length // 2, 32128)).loss


train(model, loss_of, args.steps)
