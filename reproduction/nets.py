"""ResNet-18 and ResNet-50 as they are built for images of 32 × 32: a 3 × 3 stem and no pooling."""

from __future__ import annotations

from torch import Tensor, nn

STAGES = {"resnet18": (2, 2, 2, 2), "resnet50": (3, 4, 6, 3)}


class Basic(nn.Module):
    """Two 3 × 3 convolutions around which the input is added back."""

    grows = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolution(inputs, width, 3, stride), nn.ReLU(), *_convolution(width, width, 3, 1)
        )
        self.shortcut = _shortcut(inputs, width, stride)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.body(x) + self.shortcut(x))


class Bottleneck(nn.Module):
    """A 3 × 3 convolution between two of 1 × 1, which narrow and widen fourfold."""

    grows = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolution(inputs, width, 1, 1), nn.ReLU(),
            *_convolution(width, width, 3, stride), nn.ReLU(),
            *_convolution(width, 4 * width, 1, 1),
        )  # fmt: skip
        self.shortcut = _shortcut(inputs, 4 * width, stride)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """Stem, residual blocks in one row, the pooled vector, and a linear head."""

    def __init__(self, architecture: str, classes: int, width: int = 64) -> None:
        super().__init__()
        block = Basic if architecture == "resnet18" else Bottleneck
        self.stem = nn.Sequential(*_convolution(3, width, 3, 1), nn.ReLU())
        blocks, wide = [], width
        for stage, depth in enumerate(STAGES[architecture]):
            for i in range(depth):
                stride = 2 if stage > 0 and i == 0 else 1
                blocks.append(block(wide, width << stage, stride))
                wide = (width << stage) * block.grows
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(wide, classes)

    def trunk(self, x: Tensor) -> Tensor:
        return self.pool(self.blocks(self.stem(x)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(x))

    @property
    def taps(self) -> list[str]:
        """Where it is recorded: stem, every residual block, the pooled vector."""
        return ["stem", *(f"blocks.{i}" for i in range(len(self.blocks))), "pool"]


def _convolution(inputs: int, outputs: int, side: int, stride: int) -> tuple[nn.Module, ...]:
    return (
        nn.Conv2d(inputs, outputs, side, stride, side // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(*_convolution(inputs, outputs, 1, stride))
