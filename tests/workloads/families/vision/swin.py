"""Swin transformer of torchvision with automatic mixed precision."""

import torch
import torchvision
from training import images, options, train

args = options(batch_size=16)
model = torchvision.models.swin_t().cuda()


def loss_of(model):
    pixels, labels = images(args.batch_size, 224)
    return torch.nn.functional.cross_entropy(model(pixels), labels)


train(model, loss_of, args.steps, autocast=torch.bfloat16)
