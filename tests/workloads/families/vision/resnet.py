"""ResNet-50 of torchvision with SGD, float32."""

from functools import partial

import torch
import torchvision
from training import images, options, train

args = options(batch_size=32)
model = torchvision.models.resnet50().cuda()


def loss_of(model):
    pixels, labels = images(args.batch_size, 224)
    return torch.nn.functional.cross_entropy(model(pixels), labels)


train(model, loss_of, args.steps, partial(torch.optim.SGD, momentum=0.9))
