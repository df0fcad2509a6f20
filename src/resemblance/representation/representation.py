"""Representation: the frozen summary of one network on one data set.

Per layer it holds *blocks* (exact kernels of features and of gradients inside blocks of samples),
*buckets* (kernels of the CountSketch of all samples) and a few sums over all samples; once for all
layers, the settings and where everything came from. It is made by `record`, read by everything
else, and saved as one file (docs/format.md).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from .._by_content import by_content
from .._whole_numbers import is_whole
from ..errors import DataError, LayerError, nearest
from .layer import Layer
from .outputs import Outputs
from .provenance import DataInfo, Made, ModelInfo
from .settings import Settings


@by_content
@dataclass(frozen=True, eq=False)
class TokenRows:
    """Which tokens the rows of blocks are, where samples are tokens; -1 beyond a block's size."""

    sequence: Tensor  # (k, B) int64: indices of the sequences in the data
    position: Tensor  # (k, B) int64: of the token, counted from the sequence's first real one


@by_content
@dataclass(frozen=True, eq=False)
class Representation:
    """The frozen summary of one network on one data set.

    Two are equal if all they hold is, provenance and numbers, bit for bit; they cannot be hashed.

    >>> import torch, resemblance as rs
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> rep = rs.record(net, torch.randn(64, 4))
    >>> rep.samples, [layer.name for layer in rep.layers]
    (64, ['1'])
    """

    layers: tuple[Layer, ...]  # in order of execution
    settings: Settings
    samples: int  # recorded, without those skipped: tokens, where these are the samples
    model: ModelInfo
    data: DataInfo
    made: Made
    block_sizes: tuple[int, ...]
    block_numbers: tuple[int, ...]
    block_hashes: tuple[str, ...] | None = None  # of each block's samples, in order
    label_hashes: tuple[str, ...] | None = None  # of their labels, in order
    rows: TokenRows | None = None  # where samples are tokens
    outputs: Outputs | None = None  # what it predicted for the samples of its blocks

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    def __getitem__(self, key: int | str) -> Layer:
        if is_whole(key) and -len(self) <= int(key) < len(self):
            return self.layers[int(key)]
        if not isinstance(key, str):
            raise LayerError(
                f"expected a layer's name or its number below {len(self)}, found {key!r}; "
                "`layers` is a tuple of them all, which can be sliced"
            )
        for layer in self.layers:
            if layer.name == key:
                return layer
        raise LayerError(
            f"no layer {key!r} in this Representation; "
            f"nearest: {nearest(key, (layer.name for layer in self.layers))}"
        )

    def __repr__(self) -> str:
        what = "samples" if self.settings.unit == "sample" else "tokens"
        return (
            f"Representation({self.name!r}, {len(self.layers)} layers, {self.samples} {what}, "
            f"{len(self.block_sizes)} blocks of {self.settings.block}, "
            f"{self.settings.buckets} buckets)"
        )

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def layer_names(self) -> list[str]:
        return [layer.name for layer in self.layers]

    @property
    def complete(self) -> bool:
        """Whether every shard of the data is in."""
        return self.data.complete

    @property
    def mergeable(self) -> bool:
        """Whether the accumulators were kept, which merging and classification need."""
        return self.layers[0].features.sums is not None

    @property
    def lacks(self) -> list[str]:
        """What a recording made today holds and this one, from an older file, does not."""
        features, data = self.layers[0].features, self.data
        parts = {
            "squared norms of samples": features.norms,
            "sketches in coordinates": features.sketch,
            "hashes of blocks": self.block_hashes,
            "a hash of what samples hold": data.content,
            "a hash of all weights": self.model.weights or self.model.fingerprint is None or None,
            # which may be left out today, too
            "what the network predicted": self.outputs if features.norms is None else True,
        }
        return [name for name, part in parts.items() if part is None]

    def without_sums(self) -> Representation:
        """The same without its accumulators: all that comparison needs."""
        return replace(self, layers=tuple(layer.without_sums() for layer in self.layers))

    def without_outputs(self) -> Representation:
        """The same without what the network predicted."""
        return replace(self, outputs=None)

    def renamed(self, name: str) -> Representation:
        """The same under another model name."""
        if not isinstance(name, str):
            raise DataError(f"name must be a text; found {name!r}")
        return replace(self, model=replace(self.model, name=name))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one file (by convention .rsm); it appears whole or not at all."""
        from .file_format import save

        return save(self, path)


def difference(a: Representation, b: Representation, names: Sequence[str]) -> str | None:
    """The first of the named settings in which two Representations differ, in words."""
    for name in names:
        left, right = getattr(a.settings, name), getattr(b.settings, name)
        if left != right:
            return f"{name} differs: {left!r} in {a.name!r}, {right!r} in {b.name!r}"
    return None
