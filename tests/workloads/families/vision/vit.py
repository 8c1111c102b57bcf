"""Vision transformer ViT-B/16 of torchvision, float32."""

import torch
import torchvision
from training import images, options, train

args = options(batch_size=16)
model = torchvision.models.vit_b_16().cuda()


def loss_of(model):
    pixels, labels = images(args.batch_size, 224)
    return torch.nn.functional.cross_entropy(model(pixels), labels)


train(model, loss_of, args.steps)
