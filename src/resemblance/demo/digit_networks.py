"""The networks of the demo: small ones trained on handwritten digits, and modified copies of one.

`demo_networks` trains them: networks from different seeds, one that learns odd against even on the
same images, one left untrained, and copies that were fine-tuned, quantised or pruned.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .._data.load_data import load_digits_data

# mypy: disable-error-code="no-any-return"
# (DigitNet is written into the demo's folder as it stands, without words for type checkers)


EPOCHS = 20
TRAIN_COUNT = 900  # of 1,797 images; everything is measured on the rest, which no network has seen
NETWORK_COUNT = 9  # networks that `networks` yields


class DigitNet(nn.Module):
    """Four convolutions and a linear head for 8 × 8 images."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1, self.act1 = nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()
        self.conv2, self.act2 = nn.Conv2d(16, 32, 3, padding=1, stride=2), nn.ReLU()
        self.conv3, self.act3 = nn.Conv2d(32, 48, 3, padding=1), nn.ReLU()
        self.conv4, self.act4 = nn.Conv2d(48, 64, 3, padding=1, stride=2), nn.ReLU()
        self.head = nn.Linear(64 * 2 * 2, classes)

    def forward(self, x: Tensor) -> Tensor:
        for i in (1, 2, 3, 4):
            x = getattr(self, f"act{i}")(getattr(self, f"conv{i}")(x))
        return self.head(x.flatten(1))


@dataclass(frozen=True)
class Network:
    """A network, what became of it, and how often it is right on unseen images."""

    name: str
    story: str
    model: DigitNet
    accuracy: float


def demo_networks(advance: Callable[[int], None]) -> Iterator[Network]:
    """The networks of the demo, one after the other; `advance` is called with 1 after each."""
    images, labels = load_digits_data()
    odd = labels % 2
    x, y = images[:TRAIN_COUNT], labels[:TRAIN_COUNT]

    def made(name: str, story: str, model: DigitNet, truth: Tensor = labels) -> Network:
        advance(1)
        right = accuracy(model, images[TRAIN_COUNT:], truth[TRAIN_COUNT:])
        return Network(name, story, model, right)

    twin = train_digit_net(x, y, seed=1)
    yield made("twin-1", "trained on the ten digits", twin)
    for seed in (2, 3):
        yield made(f"twin-{seed}", "the same from another seed", train_digit_net(x, y, seed=seed))
    parity = train_digit_net(x, odd[:TRAIN_COUNT], classes=2, seed=4)
    yield made("odd-even", "trained to tell odd digits from even ones", parity, odd)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        random = DigitNet(10)
    yield made("untrained", "random weights", random)
    tuned = train_digit_net(x, y, seed=6, start=twin)
    yield made("twin-1-tuned", "twin-1 trained a little longer", tuned)
    for bits in (8, 4):
        story = f"twin-1 with weights rounded to {bits} bits"
        yield made(f"twin-1-int{bits}", story, quantised_copy(twin, bits))
    yield made("twin-1-pruned", "twin-1 with half of its weights removed", pruned_copy(twin, 0.5))


def accuracy(model: DigitNet, images: Tensor, labels: Tensor) -> float:
    """The share of images that a network classifies correctly."""
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())


def train_digit_net(
    images: Tensor, labels: Tensor, *, seed: int, classes: int = 10, start: DigitNet | None = None
) -> DigitNet:
    """A network after `EPOCHS`, or after a fifth of them more, gently, from a start."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = copy.deepcopy(start) if start is not None else DigitNet(classes)
        epochs, rate = (EPOCHS, 6e-3) if start is None else (EPOCHS // 5, 6e-4)
        steps = epochs * -(-len(images) // 100)
        optimiser = torch.optim.AdamW(net.parameters(), rate, weight_decay=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        for _ in range(epochs):
            for rows in torch.randperm(len(images)).split(100):
                loss = cross_entropy(net(images[rows]), labels[rows])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
    return net


def quantised_copy(net: DigitNet, bits: int) -> DigitNet:
    """A copy with the weights of each layer rounded to 2^bits equal steps."""

    def rounded(weight: Tensor) -> Tensor:
        step = weight.abs().max() / (2 ** (bits - 1) - 1)
        return (weight / step).round() * step

    return _with_weights(net, rounded)


def pruned_copy(net: DigitNet, share: float) -> DigitNet:
    """A copy with the smallest weights of each layer set to zero."""

    def kept(weight: Tensor) -> Tensor:
        limit = weight.abs().flatten().kthvalue(int(share * weight.numel())).values
        return weight.where(weight.abs() > limit, 0)

    return _with_weights(net, kept)


def _with_weights(net: DigitNet, change: Callable[[Tensor], Tensor]) -> DigitNet:
    net = copy.deepcopy(net)
    for weight in net.parameters():
        if weight.ndim > 1:  # biases stay as they are
            weight.data = change(weight.data)
    return net
