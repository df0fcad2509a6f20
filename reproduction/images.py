"""CIFAR-10, CIFAR-100 and SVHN as arrays, from files, from torchvision, or digits in their place.

A file NAME.npz holds xtr, ytr, xte, yte: uint8 images (n, height, width, 3) and integer labels.
All networks see pixels scaled in one way, so that one probe means the same to each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .scale import DATA, Scale


@dataclass(frozen=True)
class Images:
    """Training and test images, uint8 (n, height, width, 3), and their labels."""

    xtr: Tensor
    ytr: Tensor
    xte: Tensor
    yte: Tensor

    @property
    def classes(self) -> int:
        return int(self.ytr.max()) + 1

    def to(self, device: torch.device) -> Images:
        return Images(*(part.to(device) for part in (self.xtr, self.ytr, self.xte, self.yte)))


def load(folder: Path | None, scale: Scale, device: torch.device) -> dict[str, Images]:
    """The three data sets, cut to `scale.train` training images so that size does not matter.

    No more test images than some question asks for, and none larger than `scale.side`.
    """
    n, most = scale.train, max(scale.test, scale.exact, scale.probe)
    out = {}
    for name in DATA:
        arrays = _digits(name) if folder is None else _file(folder, name)
        xtr, ytr, xte, yte = (torch.from_numpy(np.ascontiguousarray(a)) for a in arrays)
        xtr, xte = (_shrunk(x, scale.side) for x in (xtr[:n], xte[:most]))
        out[name] = Images(xtr, ytr[:n].long(), xte, yte[:most].long()).to(device)
    return out


def _shrunk(images: Tensor, side: int) -> Tensor:  # (n, h, w, 3) uint8
    """Means over squares of pixels."""
    step = images.shape[1] // side
    if step < 2:
        return images
    squares = images.unflatten(2, (-1, step)).unflatten(1, (-1, step))
    return squares.float().mean((2, 4)).round().byte()


def inputs(images: Tensor) -> Tensor:  # (n, h, w, 3) uint8 -> (n, 3, h, w) float
    """What a network sees: the same scaling for every data set.

    Channels stay last on a GPU, which is faster there. (On a CPU, oneDNN of torch 2.13 writes
    beyond its memory on convolutions of four channels that are last.)
    """
    x = (images.float() / 255 - 0.5).div_(0.25).permute(0, 3, 1, 2)
    return x if x.is_cuda else x.contiguous()


def probe(data: dict[str, Images], count: int) -> Tensor:
    """Test images of all data sets in equal parts, in a seeded order."""
    share = [len(part) for part in torch.arange(count).chunk(len(data))]
    mixed = torch.cat([d.xte[:n] for d, n in zip(data.values(), share, strict=True)])
    order = torch.randperm(len(mixed), generator=torch.Generator().manual_seed(0))
    return inputs(mixed[order.to(mixed.device)])


def noise(like: Tensor) -> Tensor:
    """Independent pixels with the same mean and spread as the images."""
    drawn = torch.randn(like.shape, generator=torch.Generator().manual_seed(1)).to(like.device)
    return drawn * like.std() + like.mean()


def _file(folder: Path, name: str) -> tuple[np.ndarray, ...]:
    path = folder / f"{name}.npz"
    if path.exists():
        with np.load(path) as content:
            return tuple(content[key] for key in ("xtr", "ytr", "xte", "yte"))
    return _torchvision(folder, name)


def _torchvision(folder: Path, name: str) -> tuple[np.ndarray, ...]:
    """The same from torchvision, which downloads what is not there."""
    from torchvision import datasets

    if name == "svhn":
        parts = [datasets.SVHN(folder, split, download=True) for split in ("train", "test")]
        pairs = [(part.data.transpose(0, 2, 3, 1), part.labels) for part in parts]
    else:
        kind = datasets.CIFAR10 if name == "cifar10" else datasets.CIFAR100
        parts = [kind(folder, train, download=True) for train in (True, False)]
        pairs = [(part.data, np.array(part.targets)) for part in parts]
    return (*pairs[0], *pairs[1])


def _digits(name: str) -> tuple[np.ndarray, ...]:
    """Small stand-ins: digits; digits with each class cut in two; digits inverted and turned."""
    from sklearn.datasets import load_digits

    content = load_digits()
    order = np.random.default_rng(0).permutation(len(content.target))
    images = (content.images[order] * 255 / 16).astype(np.uint8)
    labels = content.target[order].astype(np.int64)
    if name == "cifar100":
        heavy = images.mean((1, 2)) > np.median(images.mean((1, 2)))
        labels = labels + 10 * heavy
        images = np.flip(images, 2)
    if name == "svhn":
        images = 255 - images.transpose(0, 2, 1)
    images = np.repeat(images[..., None], 3, -1)
    return images[:1200], labels[:1200], images[1200:], labels[1200:]
