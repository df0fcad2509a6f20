"""What networks of a group are trained on: the ground truths of the six tests.

`base` are ten networks that differ in their seed alone; the correlations with accuracies and
outputs, and layer monotonicity, are read off them. Every other design has five groups, of a
*strength* s of 0, 25, 50, 75 and 100 %, with five seeds each. Networks of a group should be more
alike than networks of two groups.

- `labels`: a share s of the training labels is drawn anew, by each network for itself. ReSi wants
  networks that memorise, so they see a quarter of the samples four times as often, unaugmented.
- `labels-shared`: the same, but all networks of a group learn the same labels.
- `shortcuts`: a mark names the class with probability s, else a random class. It is a coloured disc
  on an image, or the first byte of a text. The probe has marks of random classes.
- `augmentation`: pixels get Gaussian noise of a variance drawn from 0 to 4,000 s (in grey levels),
  a text's bytes are replaced at random: a tenth of them, in a share s of the samples. The probe
  has none.
"""

from __future__ import annotations

import colorsys
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .data import Samples

STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
DESIGNS = ("base", "labels", "shortcuts", "augmentation", "labels-shared")
MAX_VARIANCE = 4000.0  # of noise, in squared grey levels
RADIUS = 3.5  # of a disc, in pixels
_MARKS = 128  # the byte that marks class 0, which no ASCII text has
_COPIES = 4  # corrupted versions of each text
_CLASSES = 10


@dataclass(frozen=True)
class Member:
    """A network of a design: its group and its seed."""

    group: int
    seed: int


@dataclass(frozen=True)
class Plan:
    """What a network is trained on.

    Attributes:
        x: samples, as they are stored.
        y: their labels.
        draws: each of how many samples is drawn in an epoch: the first of them, or a version.
        versions: versions of each sample that lie one after the other in `x`.
        augmented: whether images are cropped and mirrored.
        variance: the largest variance of Gaussian noise.
    """

    x: Tensor
    y: Tensor
    draws: int
    versions: int = 1
    augmented: bool = True
    variance: float = 0.0


def members(design: str, seeds: int) -> list[Member]:
    """All networks, seed by seed, so that what was trained first has every group."""
    if design == "base":
        return [Member(0, seed) for seed in range(2 * seeds)]
    return [Member(g, seed) for seed in range(seeds) for g in range(len(STRENGTHS))]


def network_seed(design: str, member: Member) -> int:
    """The seed of weights and of the order of samples; none comes twice in a family."""
    return 10_000 * DESIGNS.index(design) + 100 * member.group + member.seed


def plan(design: str, member: Member, samples: Samples) -> Plan:
    """What one network of a design is trained on."""
    x, y = samples.x_train, samples.y_train
    strength = STRENGTHS[member.group]
    if design == "base":
        return Plan(x, y, len(x))
    if design in ("labels", "labels-shared"):
        count = max(1, len(x) // 4)
        seed = network_seed(design, member if design == "labels" else Member(member.group, 0))
        return Plan(x[:count], random_labels(y[:count], strength, seed), count, augmented=False)
    if design == "shortcuts":
        return Plan(marked(x, y, strength, seed=1), y, len(x))
    if design != "augmentation":
        raise ValueError(f"expected one of {', '.join(DESIGNS)}; found {design!r}")
    if samples.is_text:
        return Plan(
            torch.cat([corrupted(x, strength, seed=2 + i) for i in range(_COPIES)]),
            y.repeat(_COPIES), len(x), versions=_COPIES,
        )  # fmt: skip
    return Plan(x, y, len(x), variance=MAX_VARIANCE * strength)


def probe(design: str, samples: Samples, count: int) -> tuple[Tensor, Tensor]:
    """Held-out samples that networks of a design are recorded on, and their labels."""
    x, y = held_out(design, samples)
    return x[:count], y[:count]


def held_out(design: str, samples: Samples) -> tuple[Tensor, Tensor]:
    """All test samples as a design's networks are judged on them."""
    x, y = samples.x_test, samples.y_test
    return (marked(x, y, 0.0, seed=0) if design == "shortcuts" else x), y


def random_labels(y: Tensor, share: float, seed: int) -> Tensor:
    """Labels of which a share is drawn anew from all classes."""
    generator = np.random.default_rng(seed)
    out = y.cpu().numpy().copy()
    chosen = generator.permutation(len(out))[: round(share * len(out))]
    out[chosen] = generator.integers(0, _CLASSES, len(chosen))
    return torch.from_numpy(out).to(y.device)


def marked(x: Tensor, y: Tensor, strength: float, seed: int) -> Tensor:
    """Samples with a mark of their class, with a probability, else of a random class."""
    generator = np.random.default_rng(seed)
    n = len(x)
    classes = y.cpu().numpy()
    named = np.where(generator.random(n) < strength, classes, generator.integers(0, _CLASSES, n))
    out = x.clone()
    if x.ndim == 2:
        out[:, 0] = torch.from_numpy((_MARKS + named).astype(np.uint8)).to(x.device)
        return out
    side = x.shape[1]
    palette = [colorsys.hsv_to_rgb(c / _CLASSES, 1, 1) for c in range(_CLASSES)]
    colours = torch.tensor(np.array(palette)[named] * 255, dtype=torch.float32).to(torch.uint8)
    centres = torch.from_numpy(generator.integers(2, side - 2, (n, 2, 1))).to(x.device)
    line = torch.arange(side, device=x.device)
    away = (line - centres).square()  # (n, 2, side)
    disc = away[:, 0, :, None] + away[:, 1, None, :] < RADIUS**2
    return torch.where(disc[..., None], colours.to(x.device)[:, None, None, :], out)


def corrupted(x: Tensor, share: float, seed: int) -> Tensor:
    """Texts of which a share have a tenth of their bytes replaced by random printable ones."""
    generator = np.random.default_rng(seed)
    hit = (generator.random(x.shape) < 0.1) & (generator.random((len(x), 1)) < share)
    noise = generator.integers(32, 127, x.shape).astype(np.uint8)
    return torch.where(torch.from_numpy(hit).to(x.device), torch.from_numpy(noise).to(x.device), x)
