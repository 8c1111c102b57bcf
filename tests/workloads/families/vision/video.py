"""3D convolutions: R3D-18 of torchvision on short clips."""

import torch
import torchvision
from training import options, train

args = options(batch_size=4)
model = torchvision.models.video.r3d_18().cuda()


def loss_of(model):
    clips = torch.randn(args.batch_size, 3, 16, 112, 112).cuda()
    return torch.nn.functional.cross_entropy(model(clips), torch.randint(400, (args.batch_size,)).cuda())


train(model, loss_of, args.steps)
