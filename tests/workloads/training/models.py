"""The three models of the suite; a step takes milliseconds on the simulated GPU."""

import torch
from torch import nn


class Mlp(nn.Sequential):
    """Seven linear layers with ReLU in between."""

    input_shape = (32, 256)
    classes = 10

    def __init__(self):
        layers = []
        for _ in range(6):
            layers += [nn.Linear(256, 256), nn.ReLU()]
        super().__init__(*layers, nn.Linear(256, self.classes))


class Block(nn.Module):
    """The basic block of ResNet-18."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 for 32x32 images."""

    input_shape = (16, 3, 32, 32)
    classes = 10

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True))
        for number, (inputs, outputs, stride) in enumerate([(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)], 1):
            stage = nn.Sequential(Block(inputs, outputs, stride), Block(outputs, outputs, 1))
            self.add_module(f"layer{number}", stage)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, self.classes))

    def forward(self, x):
        x = self.layer2(self.layer1(self.stem(x)))
        return self.head(self.layer4(self.layer3(x)))


class Transformer(nn.Module):
    """Two encoder layers over vectors."""

    input_shape = (8, 32, 128)
    classes = 10

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(128, self.classes)

    def forward(self, x):
        return self.head(self.encoder(x).mean(1))


MODELS = {"mlp": Mlp, "resnet18": ResNet18, "transformer": Transformer}


def batch(model, device):
    """One batch for a model: inputs and labels."""
    inputs = torch.randn(model.input_shape).to(device)
    labels = torch.zeros(model.input_shape[0], dtype=torch.long).to(device)
    return inputs, labels
