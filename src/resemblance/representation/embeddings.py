"""Embeddings: what a recording keeps of a network that returns a vector a sample, not predictions.

Those of the first 4,096 places of the seeded order, in whole blocks, so that two recordings of the
same samples keep the same ones. Only directions matter for cosines: each vector is scaled to length
one and rounded to float16, which moves a cosine by less than 0.0001.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .._utils.equality import by_content

MAX_EMBEDDINGS = 4096  # samples


@by_content
@dataclass(frozen=True, eq=False)
class Embeddings:
    """The embeddings stored for the first samples of the seeded order.

    Attributes:
        vectors: the direction of each sample's embedding, of length 1; zero where the embedding is.
    """

    vectors: Tensor  # (rows, dimensions) float16

    @property
    def rows(self) -> int:
        return len(self.vectors)

    @property
    def dimensions(self) -> int:
        return self.vectors.shape[1]

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name.

        Returns:
            The vectors, under their name.
        """
        return {"vectors": self.vectors}


def directions(vectors: Tensor) -> Tensor:  # (n, d) of any floating dtype -> float16
    """Vectors of length one, rounded to float16; zero vectors stay zero."""
    wide = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    largest = wide.abs().amax(1, keepdim=True)
    wide = wide / torch.where(largest > 0, largest, 1.0)
    length = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
    return (wide / length.clamp_min(0.5)).to(torch.float16)  # at least 1, or 0


def embedded_blocks(block: int) -> int:
    """The number of blocks of this size whose samples' embeddings are kept."""
    return max(1, MAX_EMBEDDINGS // block)


def embedded_sizes(numbers: Sequence[int], sizes: Sequence[int], block: int) -> list[int]:
    """The sizes of those of some blocks whose samples' embeddings are kept, in the same order."""
    most = embedded_blocks(block)
    return [size for number, size in zip(numbers, sizes, strict=True) if number < most]


def join_embeddings(
    parts: Sequence[Embeddings],
    numbers: Sequence[Sequence[int]],
    sizes: Sequence[Sequence[int]],
    block: int,
) -> Embeddings:
    """Embeddings of parts with these blocks, in the order of the blocks."""
    by_number: dict[int, Tensor] = {}
    for part, its_numbers, its_sizes in zip(parts, numbers, sizes, strict=True):
        kept = [number for number in its_numbers if number < embedded_blocks(block)]
        each = part.vectors.split(embedded_sizes(its_numbers, its_sizes, block))
        by_number |= zip(kept, each, strict=False)
    found = [by_number[number] for number in sorted(by_number)]
    return Embeddings(torch.cat([parts[0].vectors[:0], *found]))
