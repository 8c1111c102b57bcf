"""ConvNeXt of torchvision, channels last, with automatic mixed precision."""

import torch
import torchvision
from training import images, options, train

args = options(batch_size=32)
model = torchvision.models.convnext_tiny().cuda().to(memory_format=torch.channels_last)


def loss_of(model):
    pixels, labels = images(args.batch_size, 224)
    return torch.nn.functional.cross_entropy(model(pixels.to(memory_format=torch.channels_last)), labels)


train(model, loss_of, args.steps, autocast=torch.bfloat16)
