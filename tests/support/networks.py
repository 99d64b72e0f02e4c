"""Networks made of torch's own modules, in the size in which they are published or small."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn


class Block(nn.Module):
    """The basic block of a resnet: two convolutions and a shortcut."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut = (
            nn.Identity()
            if stride == 1 and width_in == width
            else nn.Sequential(nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        )

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm2(self.second(F.relu(self.norm1(self.first(x)))))
        return F.relu(out + self.shortcut(x))


def resnet18(classes: int = 10) -> nn.Module:
    """A resnet18 as published: 2-2-2-2 basic blocks, 64 to 512 wide; 11 689 512 parameters with 1000 classes."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    width_in = 64
    for width, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
        layers.append(Block(width_in, width, stride))
        width_in = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


def transformer(layers: int = 4) -> nn.Module:
    """An encoder: width 128, 4 heads, no dropout."""
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


class First(nn.Module):
    """A recurrent net's outputs, without its states."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)[0]
        return out


def lstm() -> nn.Module:
    """Two layers, 64 wide."""
    return First(nn.LSTM(64, 64, 2, batch_first=True))


def gru() -> nn.Module:
    """Two layers, 64 wide."""
    return First(nn.GRU(64, 64, 2, batch_first=True))


def mlp() -> nn.Module:
    """Three small layers: little but overhead."""
    return nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
