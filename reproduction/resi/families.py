"""The networks: a narrow ResNet, a VGG and a small transformer, each with six places to record.

Every network returns logits. What the modules of its `layers` return is recorded, from the input
on. Spatial positions and tokens are averaged, before the classifier and in the recordings alike.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..nets import Basic
from .data import WINDOW

FAMILIES = ("resnet", "vgg", "transformer")
LAYERS = 6
_CLASSES = 10


class ResNet(nn.Module):
    """A stem and five residual blocks, of 32 to 128 channels."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Sequential(
                nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
            ),
            Basic(width, width, 1),
            Basic(width, 2 * width, 2),
            Basic(2 * width, 2 * width, 1),
            Basic(2 * width, 4 * width, 2),
            Basic(4 * width, 4 * width, 1),
        )
        self.head = nn.Linear(4 * width, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x).mean((2, 3)))


class VGG(nn.Module):
    """Six convolutions of 32 to 128 channels, in three pairs with pooling between them."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        widths = (3, width, width, 2 * width, 2 * width, 4 * width, 4 * width)
        self.layers = nn.Sequential(
            *(
                nn.Sequential(
                    *([nn.MaxPool2d(2)] if i in (2, 4) else []),
                    nn.Conv2d(before, after, 3, 1, 1, bias=False),
                    nn.BatchNorm2d(after),
                    nn.ReLU(),
                )
                for i, (before, after) in enumerate(itertools.pairwise(widths))
            )
        )
        self.head = nn.Linear(4 * width, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x).mean((2, 3)))


class Block(nn.Module):
    """Self-attention and a perceptron, each after a LayerNorm and with the input added back."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:  # (n, positions, width)
        parts = self.mix(self.norms[0](x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.widen(self.norms[1](x))))


class Embedding(nn.Module):
    """Bytes and their positions as vectors.

    Rows are picked by a matrix product, whose backward pass can be part of a CUDA graph.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bytes = nn.Parameter(0.5 * torch.randn(256, width))
        self.positions = nn.Parameter(0.02 * torch.randn(WINDOW, width))
        self.register_buffer("codes", torch.arange(256), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        chosen = x[..., None] == self.codes
        return chosen.to(self.bytes.dtype) @ self.bytes + self.positions


class Transformer(nn.Module):
    """Bytes, five blocks, and the mean over positions."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        heads = max(1, width // 32)
        blocks = [Block(width, heads) for _ in range(LAYERS - 1)]
        self.layers = nn.Sequential(Embedding(width), *blocks)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.layers(x).mean(1)))


def build(family: str, seed: int, *, tiny: bool = False) -> nn.Module:
    """A network with the initial weights of a seed; the global generator is left alone."""
    classes = {"resnet": ResNet, "vgg": VGG, "transformer": Transformer}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return classes[family](*([4 if family != "transformer" else 16] if tiny else []))


def inputs(x: Tensor) -> Tensor:
    """What networks take: images (n, 3, h, w) in [-2, 2], or bytes as integers (n, positions)."""
    if x.ndim == 2:
        return x.long()
    return (x.permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25
