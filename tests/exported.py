"""Small networks exported to ONNX by both of torch's exporters, and quantised by onnxruntime."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """A residual block with batch norms; its ReLU is one module that runs twice."""

    def __init__(self, inside: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.shortcut = None
        if inside != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(nn.Module):
    """Four residual blocks for 16 × 16 images and five classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU()
        self.layer1 = nn.Sequential(Residual(8, 8, 1), Residual(8, 8, 1))
        self.layer2 = nn.Sequential(Residual(8, 16, 2), Residual(16, 16, 1))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(self.relu(self.bn1(self.conv1(x)))))
        return self.fc(self.pool(x).flatten(1))


class Attention(nn.Module):
    """A transformer block over (n, length, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.act, self.down = (
            nn.Linear(width, 2 * width),
            nn.GELU(),
            nn.Linear(2 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(n, length, 3, 4, width // 4).unbind(2)
        weights = torch.softmax(torch.einsum("nqhd,nkhd->nhqk", q, k) / (width // 4) ** 0.5, -1)
        x = x + self.out(torch.einsum("nhqk,nkhd->nqhd", weights, v).reshape(n, length, width))
        return x + self.down(self.act(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Three blocks over twelve tokens of a vocabulary of 50, for five classes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.blocks = nn.ModuleList(Attention(16) for _ in range(3))
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class Masked(nn.Module):
    """A block that makes a mask of the tokens, as every block of a BERT does."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        hidden = torch.where(tokens[:, None] == 0, -1e4, 0.0)
        weights = torch.softmax(x @ x.transpose(1, 2) / 4 + hidden, -1)
        x = self.norm(x + self.mix(weights @ x))
        return x + self.down(torch.relu(self.up(x)))


class MaskedTransformer(nn.Module):
    """Three blocks that share a mask, over twelve tokens of a vocabulary of 50."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.blocks = nn.ModuleList(Masked(16) for _ in range(3))
        self.head = nn.Linear(16, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, tokens)
        return self.head(x.mean(1))


def resnet(seed: int = 0) -> nn.Module:
    """A ResNet in evaluation mode whose batch norms have seen data."""
    torch.manual_seed(seed)
    net = ResNet()
    with torch.no_grad():
        net.train()
        for _ in range(20):
            net(torch.randn(32, 3, 16, 16))
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.5)
                module.bias.uniform_(-0.3, 0.3)
    return net.eval()


def transformer(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return Transformer().eval()


def masked_transformer(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return MaskedTransformer().eval()


def images(n: int = 96) -> Tensor:
    return torch.randn(n, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def tokens(n: int = 96) -> Tensor:
    return torch.randint(0, 50, (n, 12), generator=torch.Generator().manual_seed(1))


def export(
    net: nn.Module, x: Tensor, path: Path, *, dynamo: bool, batch: int | None = None, **more: Any
) -> Path:
    """An ONNX file of a network; `batch` fixes the number of samples in a run."""
    inputs = x[: batch or 3]
    names = {"input_names": ["x"], "output_names": ["logits"]}
    if batch is not None:
        axes: dict[str, Any] = {}
    elif dynamo:
        axes = {"dynamic_shapes": ({0: torch.export.Dim("n", min=1, max=4096)},)}
    else:
        axes = {"dynamic_axes": {"x": {0: "n"}, "logits": {0: "n"}}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net, (inputs,), path, dynamo=dynamo, verbose=False, **names, **axes, **more
        )
    return path


class _Calibration:
    def __init__(self, x: Tensor) -> None:
        self._batches = iter(x.split(16))

    def get_next(self) -> dict[str, np.ndarray] | None:
        batch = next(self._batches, None)
        return None if batch is None else {"x": batch.numpy()}


def quantise(source: Path, x: Tensor, target: Path, form: str) -> Path:
    """A copy in int8: `qdq` and `operators` with static scales, `dynamic` with those of a batch."""
    import onnx
    import onnxruntime.quantization as q

    # shapes that torch's newer exporter notes stop matching once quantisation transposes a weight
    plain = onnx.load(source)
    del plain.graph.value_info[:]
    source = target.with_suffix(".plain.onnx")
    onnx.save(plain, source)
    if form == "dynamic":
        q.quantize_dynamic(source, target, weight_type=q.QuantType.QInt8)
        return target
    formats = {"qdq": q.QuantFormat.QDQ, "operators": q.QuantFormat.QOperator}
    q.quantize_static(source, target, _Calibration(x), quant_format=formats[form])
    return target
