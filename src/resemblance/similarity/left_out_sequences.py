"""Leaving out sequences, where samples are tokens of them.

Tokens of one sequence are not independent, so an error bar leaves out whole sequences: a group of
them at a time, with all of their tokens, which lie one in each block of their window.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from .._ops import packed_kernels as packing
from ..representation.layer import Blocks, Layer
from ..representation.representation import Representation

_FEWEST = 20  # groups of sequences, if there are as many
_FEWEST_ROWS = 4  # that a centred estimate needs of a block


class Group(NamedTuple):
    """Sequences that are left out together."""

    blocks: slice  # of their window
    size: int  # rows of each of those
    rest: np.ndarray  # (m,) rows of those blocks that stay; none if a window goes as a whole


def groups(rep: Representation, most: int | None = None) -> list[Group]:
    """At least twenty groups of sequences, none across windows; of the first `most` blocks."""
    tokens, sizes = rep.settings.tokens, rep.block_sizes[:most]
    windows = [(start, sizes[start]) for start in range(0, len(sizes), tokens)]
    each = -(-_FEWEST // len(windows))
    out = []
    for start, n in windows:
        for gone in np.array_split(np.arange(n), min(each, n)):
            rest = np.setdiff1d(np.arange(n), gone)
            kept = rest if len(rest) >= _FEWEST_ROWS else rest[:0]
            out.append(Group(slice(start, start + tokens), n, kept))
    return out


def only(rep: Representation, group: Group) -> Representation:
    """A Representation of a group's window alone, with the rows that stay."""
    tokens = rep.settings.tokens
    return replace(
        rep,
        layers=tuple(only_layer(layer, group) for layer in rep),
        block_sizes=(len(group.rest),) * tokens,
        block_numbers=rep.block_numbers[group.blocks],
        block_hashes=None,
        label_hashes=None,
    )


def only_layer(layer: Layer, group: Group) -> Layer:
    """A layer with a group's window alone, with the rows that stay."""
    rows = torch.from_numpy(group.rest)
    i, j = packing.lower(len(rows))
    high, low = rows[i], rows[j]  # rows ascend
    entries = high * (high - 1) // 2 + low
    parts = {}
    for kind in layer.kinds:
        recorded = layer.recorded(kind)
        if recorded.blocks is not None:
            packed = recorded.blocks
            offset = None if packed.offset is None else packed.offset[group.blocks][:, rows]
            kept = Blocks(
                packed.triangle[group.blocks][:, entries],
                packed.diagonal[group.blocks][:, rows],
                offset,
            )
            parts[kind] = replace(recorded, blocks=kept)
    return replace(layer, **parts)  # type: ignore[arg-type]
