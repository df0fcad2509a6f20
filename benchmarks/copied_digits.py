"""A network for handwritten digits, a smaller one, and the images that neither saw in training.

`copies` writes this file into its folder as networks.py, from which the command builds networks.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from torch import Tensor, nn

TRAINED_ON = 797  # of 1,797 images


class DigitNet(nn.Module):
    """Three convolutions, a hidden layer and a head, for 8 × 8 images."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.act1 = nn.Conv2d(1, width, 3, padding=1), nn.ReLU()
        self.conv2, self.act2 = nn.Conv2d(width, 2 * width, 3, padding=1, stride=2), nn.ReLU()
        self.conv3, self.act3 = nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU()
        self.hidden, self.act4 = nn.Linear(32 * width, 4 * width), nn.ReLU()
        self.head = nn.Linear(4 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act3(self.conv3(self.act2(self.conv2(self.act1(self.conv1(x))))))
        return self.head(self.act4(self.hidden(x.flatten(1))))


def network() -> DigitNet:
    return DigitNet(16)


def smaller() -> DigitNet:
    return DigitNet(6)


def dynamic() -> nn.Module:
    """The network of base.safetensors with its linear layers in torch's own dynamic int8."""
    net = network()
    net.load_state_dict(load_file(Path(__file__).parent / "base.safetensors"))
    return torch.ao.quantization.quantize_dynamic(net.eval(), {nn.Linear}, torch.qint8)


def images() -> tuple[Tensor, Tensor]:
    """All images and their labels, in a seeded order."""
    digits = load_digits()
    order = torch.randperm(len(digits.images), generator=torch.Generator().manual_seed(0))
    pixels = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    return pixels[order], torch.tensor(digits.target)[order]


def unseen() -> Tensor:
    return images()[0][TRAINED_ON:]
