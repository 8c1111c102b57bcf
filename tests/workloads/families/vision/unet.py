"""A U-Net with attention that predicts noise, as in diffusion models, with averaged weights."""

import torch
from torch import nn
from training import options, train


class Block(nn.Module):
    def __init__(self, inputs, outputs, attends=False):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(256, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        self.attention = nn.MultiheadAttention(outputs, 4, batch_first=True) if attends else None

    def forward(self, x, time):
        h = self.conv1(nn.functional.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        h = self.conv2(nn.functional.silu(self.norm2(h))) + self.skip(x)
        if self.attention:
            flat = h.flatten(2).transpose(1, 2)
            h = h + self.attention(flat, flat, flat, need_weights=False)[0].transpose(1, 2).reshape(h.shape)
        return h


class UNet(nn.Module):
    def __init__(self, widths=(64, 128, 256, 256)):
        super().__init__()
        self.stem, self.time = nn.Conv2d(3, widths[0], 3, padding=1), nn.Sequential(nn.Linear(1, 256), nn.SiLU(), nn.Linear(256, 256))
        pairs = list(zip((widths[0], *widths), widths))
        self.down = nn.ModuleList(Block(a, b, attends=number >= 2) for number, (a, b) in enumerate(pairs))
        self.middle = Block(widths[-1], widths[-1], attends=True)
        self.up = nn.ModuleList(Block(2 * b, a, attends=number < 2) for number, (a, b) in enumerate(reversed(pairs)))
        self.head = nn.Conv2d(widths[0], 3, 1)

    def forward(self, x, time):
        time, skips = self.time(time[:, None]), []
        x = self.stem(x)
        for block in self.down:
            x = block(x, time)
            skips.append(x)
            x = nn.functional.avg_pool2d(x, 2)
        x = self.middle(x, time)
        for block in self.up:
            x = nn.functional.interpolate(x, scale_factor=2.0)
            x = block(torch.cat([x, skips.pop()], 1), time)
        return self.head(x)


args = options(batch_size=16, size=64)
model = UNet().cuda()
average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999))


def loss_of(model):
    pixels = torch.rand(args.batch_size, 3, args.size, args.size).cuda()
    time, noise = torch.rand(args.batch_size, device="cuda"), torch.randn_like(pixels)
    mixed = (1 - time)[:, None, None, None] * pixels + time[:, None, None, None] * noise
    average.update_parameters(model)
    return nn.functional.mse_loss(model(mixed, time), noise - pixels)


train(model, loss_of, args.steps)
