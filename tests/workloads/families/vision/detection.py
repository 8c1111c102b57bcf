"""Faster R-CNN of torchvision. The number of boxes depends on what the network predicts."""

import torch
import torchvision
from training import options, train

args = options(batch_size=2, size=320)
model = torchvision.models.detection.fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None).cuda()


def loss_of(model):
    pictures = [torch.rand(3, args.size, args.size).cuda() for _ in range(args.batch_size)]
    boxes = torch.tensor([[10.0, 10.0, 100.0, 100.0], [50.0, 60.0, 200.0, 220.0]])
    targets = [{"boxes": boxes.cuda(), "labels": torch.tensor([1, 2]).cuda()} for _ in pictures]
    return sum(model(pictures, targets).values())


train(model, loss_of, args.steps)
