"""The networks of the settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

__all__ = ["ChannelsLast", "mlp", "resnet20", "small_cnn"]


def mlp(inputs: int, widths: Sequence[int], outputs: int, dropout: float = 0.0) -> nn.Sequential:
    """Blocks of linear, ReLU and dropout, and a linear output."""
    layers: list[nn.Module] = []
    size = inputs
    for width in widths:
        layers += [nn.Linear(size, width), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
        size = width
    return nn.Sequential(*layers, nn.Linear(size, outputs))


class ChannelsLast(nn.Module):
    """Convolutions on images stored pixel by pixel: on a CPU that is a third faster."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body: nn.Module = cast(Any, body).to(memory_format=torch.channels_last)  # torch's types do not know of it

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.body(x.contiguous(memory_format=torch.channels_last))
        return outputs


def small_cnn(
    classes: int, channels: Sequence[int] = (16, 32, 64), hidden: int = 256, image_size: int = 32
) -> nn.Module:
    """Three blocks of convolution, pooling, batch normalisation and ReLU, a hidden layer, a linear output."""
    layers: list[nn.Module] = []
    size = 3
    for width in channels:
        layers += [nn.Conv2d(size, width, 3, padding=1, bias=False), nn.MaxPool2d(2), nn.BatchNorm2d(width), nn.ReLU()]
        size = width
    pixels = (image_size // 2 ** len(channels)) ** 2
    layers += [nn.Flatten(), nn.Linear(size * pixels, hidden), nn.ReLU(), nn.Linear(hidden, classes)]
    return ChannelsLast(nn.Sequential(*layers))


class _ResidualBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut, which is a 1×1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        shortcut = [nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)]
        self.shortcut: nn.Module = nn.Identity() if inputs == outputs else nn.Sequential(*shortcut)
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.activation(self.body(x) + self.shortcut(x))
        return outputs


def resnet20(classes: int, dropout: float = 0.3, shrink: int = 1) -> nn.Module:
    """Three stages of three residual blocks with 16, 32 and 64 channels, pooling, dropout, a linear output.

    ``shrink``: images are averaged over squares of so many pixels a side first, which takes shrink² times less work.
    """
    layers: list[nn.Module] = [nn.AvgPool2d(shrink)] if shrink > 1 else []
    layers += [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    size = 16
    for width in (16, 32, 64):
        for _ in range(3):
            layers.append(_ResidualBlock(size, width))
            size = width
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(size, classes)]
    return ChannelsLast(nn.Sequential(*layers, *head))
