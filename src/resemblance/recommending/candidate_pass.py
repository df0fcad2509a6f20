"""One pass of a candidate over the query's samples, from which all its scores are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from .._model.losses import FindLogits
from .._model.pooling import Pool
from ..analysis.sample_vectors import Pass, Vectors, joined, visit
from ..representation.layer import Kind
from .query_samples import Query

WIDTH = 4096  # to which wider layers are folded


@dataclass(frozen=True)
class Seen:
    """What one pass showed: each layer's vectors in the order of `positions`."""

    layers: dict[str, Vectors]  # in order of execution, each (n, d)
    positions: np.ndarray  # (n,) of the samples in the query
    logits: Tensor | None  # (n, Z), None for a model that gives none
    parameters: int

    def probabilities(self) -> Tensor | None:  # (n, Z)
        return None if self.logits is None else self.logits.double().softmax(1)


@dataclass(frozen=True)
class Look:
    """How candidates are run."""

    layers: str | Sequence[str] = "auto"
    pool: Pool = "flatten"
    gradients: bool = False  # for scores without labels: a backward pass besides
    logits: FindLogits | None = None
    width: int | None = WIDTH
    seed: int = 0
    batch_size: int = 128


def seen(model: nn.Module, query: Query, how: Look) -> Seen:
    """Run a candidate once; it is left as it was.

    Cost: one forward pass, and a backward if gradients are asked for; n × d floats a layer.
    """
    kinds: tuple[Kind, ...] = ("features", "gradients") if how.gradients else ("features",)
    run = Pass(kinds, how.pool, 0.5, how.logits, None, how.width, how.seed, how.batch_size)
    rows: dict[str, list[Vectors]] = {}
    positions: list[np.ndarray] = []
    logits: list[Tensor] = []

    def take_in(indices: np.ndarray, _: object, layers: dict[str, Vectors]) -> None:
        positions.append(indices)
        for name, vectors in layers.items():
            rows.setdefault(name, []).append(vectors)

    visit(
        model,
        query.samples,
        how.layers,
        run,
        take_in,
        see=lambda z: logits.append(z.detach().float().cpu()),
    )
    return Seen(
        {name: joined(rows.pop(name)) for name in list(rows)},
        np.concatenate(positions),
        torch.cat(logits) if logits else None,
        sum(p.numel() for p in model.parameters()),
    )
