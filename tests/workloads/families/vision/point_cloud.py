"""PointNet with neighbours by distance: large matrices of distances that live shortly."""

import torch
from torch import nn
from training import options, train


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.local = nn.Sequential(nn.Conv2d(6, 64, 1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 128, 1))
        self.point = nn.Sequential(nn.Conv1d(128, 1024, 1), nn.BatchNorm1d(1024), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 40))

    def forward(self, points):
        near = torch.cdist(points, points).topk(16, largest=False).indices
        rows = torch.arange(len(points), device="cuda")[:, None, None]
        around = points[rows, near]
        center = points[:, :, None].expand_as(around)
        x = self.local(torch.cat([center, around - center], -1).permute(0, 3, 1, 2)).amax(-1)
        return self.head(self.point(x).amax(-1))


args = options(batch_size=16, points=1024)
model = Model().cuda()


def loss_of(model):
    output = model(torch.randn(args.batch_size, args.points, 3).cuda())
    return nn.functional.cross_entropy(output, torch.randint(40, (args.batch_size,)).cuda())


train(model, loss_of, args.steps)
