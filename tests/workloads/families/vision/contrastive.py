"""Two encoders with a contrastive loss between images and texts, as CLIP is trained."""

import torch
import torchvision
from torch import nn
from training import images, options, tokens, train


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.picture = torchvision.models.resnet18(num_classes=256)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
        self.embed, self.text = nn.Embedding(20000, 256), nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.scale = nn.Parameter(torch.tensor(2.6))

    def forward(self, pixels, ids):
        a, b = self.picture(pixels), self.text(self.embed(ids)).mean(1)
        return self.scale.exp() * nn.functional.normalize(a, dim=-1) @ nn.functional.normalize(b, dim=-1).T


args = options(batch_size=64)
model = Model().cuda()


def loss_of(model):
    scores = model(images(args.batch_size, 128)[0], tokens(args.batch_size, 64, 20000))
    same = torch.arange(args.batch_size, device="cuda")
    return (nn.functional.cross_entropy(scores, same) + nn.functional.cross_entropy(scores.T, same)) / 2


train(model, loss_of, args.steps, autocast=torch.bfloat16)
