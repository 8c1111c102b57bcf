"""DeepLab v3 of torchvision: dilated convolutions, and a loss per pixel."""

import torch
import torchvision
from training import images, options, train

args = options(batch_size=4, size=256)
model = torchvision.models.segmentation.deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=21, aux_loss=True).cuda()


def loss_of(model):
    pixels, _ = images(args.batch_size, args.size)
    labels = torch.randint(21, (args.batch_size, args.size, args.size)).cuda()
    output = model(pixels)
    loss = torch.nn.functional.cross_entropy
    return loss(output["out"], labels) + 0.4 * loss(output["aux"], labels)


train(model, loss_of, args.steps)
