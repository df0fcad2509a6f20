"""A zoo of a few small networks on one set of samples: a base, copies of it, and strangers."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from resemblance import Zoo, record
from resemblance.representation.representation import Representation
from resemblance.zoo.entry import Entry

NASTY = "<script>alert(1)</script>\x1b[31m\u202e"
SAMPLES = 128


def network(seed: int, width: int = 12, classes: int = 4) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(8, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, classes),
    )


def moved(net: nn.Module, seed: int, far: float) -> nn.Module:
    """A copy whose weights differ a little, as after some steps of training."""
    out, noise = copy.deepcopy(net), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in out.parameters():
            weight += far * weight.std() * torch.randn(weight.shape, generator=noise)
    return out


def samples(seed: int = 0, count: int = SAMPLES) -> torch.Tensor:
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))


def recorded(net: nn.Module, name: str, x: torch.Tensor | None = None, **more: Any) -> Any:
    return record(net, samples() if x is None else x, name=name, data_id="made up", **more)


def recordings() -> Iterator[tuple[Representation, list[str]]]:
    base = network(0)
    yield recorded(base, "base"), ["base", "small"]
    yield recorded(moved(base, 1, 0.02), "tuned"), ["copy", "small"]
    yield recorded(moved(base, 2, 0.2), "tuned further"), ["copy", "small"]
    yield recorded(network(3), "stranger"), ["small"]
    yield recorded(network(4, width=20), "wide stranger"), ["wide"]
    yield recorded(network(5), NASTY), []
    yield recorded(network(0), "base on other samples", samples(9, 96)), ["reference"]


@dataclass(frozen=True)
class Filled:
    """Where a zoo is, and its entries by name."""

    place: Path
    entries: dict[str, Entry]

    def id(self, name: str) -> str:
        return self.entries[name].id

    @property
    def group(self) -> str:
        return self.entries["base"].group


def filled(place: Path) -> dict[str, Entry]:
    """Fill a zoo; its entries by name. Two are linked to recordings of what they learned from."""
    with Zoo(place) as zoo:
        out = {rep.name: zoo.add(rep, tags=tags) for rep, tags in recordings()}
        reference = out["base on other samples"].id
        rep = recorded(network(6), "learned elsewhere")
        out[rep.name] = zoo.add(rep, tags=["wide"], trained_on=reference)
    return out
