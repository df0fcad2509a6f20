"""`compare_all`: many networks on one data set, compared in one matrix product a block.

A kernel block is a long vector, and CKA is a bilinear form in two of them: an inner product of the
entries plus inner products of row sums and diagonals. So all pairs of R networks cost one R × t by
t × R product a block and layer, and each Gram matrix is read once. The result clusters the networks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from . import blocks as packing
from . import from_blocks, kernels
from .compare import check_recorded, no_blocks
from .errors import DataError, MismatchError
from .representation import Layer, Representation

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class ComparisonMatrix:
    """Similarities of networks with each other, averaged over their matched layers."""

    models: tuple[str, ...]
    scores: np.ndarray  # (models, models)
    stderr: np.ndarray
    layers: tuple[tuple[str, ...], ...]  # of each model, the layers that were matched
    kernel: str
    index: str
    centre: bool
    samples: int

    @property
    def heading(self) -> str:
        """What was computed, from what, on how many samples."""
        centred = "centred " if self.centre else ""
        where = self.layers[0][0] if len(self.layers[0]) == 1 else f"{len(self.layers[0])} layers"
        return f"{self.index} of {centred}{self.kernel} at {where}, {self.samples:,} samples"

    def clusters(self) -> np.ndarray:  # (models - 1, 4)
        """Average-linkage merges (left, right, 1 − similarity, size), as SciPy's hierarchy has them."""
        return average_linkage(1 - np.nan_to_num(self.scores))

    def order(self) -> list[int]:
        """Models in the order of the dendrogram's leaves: like beside like."""
        return leaf_order(self.clusters())

    def plot(self) -> Figure:
        """A clustered map with its dendrogram."""
        from . import plot

        return plot.clustered(self.scores, self.models, self.order(), self.clusters(), self.heading)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings."""
        return {
            "models": list(self.models),
            "scores": self.scores.tolist(),
            "stderr": self.stderr.tolist(),
            "layers": [list(names) for names in self.layers],
            "kernel": self.kernel,
            "index": self.index,
            "centre": self.centre,
            "samples": self.samples,
        }


def compare_all(
    reps: Sequence[Representation],
    *,
    kernel: str = "product",
    index: str = "cka",
    centre: bool | None = None,
    layer: str | int | None = None,
    blocks: int = 16,
) -> ComparisonMatrix:
    """All pairs of networks recorded on the same samples.

    Args:
        reps: two or more, recorded on the same samples with the same settings.
        kernel, centre: as in `compare`.
        index: `cka` or `cka-debiased`.
        layer: a name or position to compare at. None averages over matched layers: networks of
            equal depth by position, others by relative depth, at as many depths as the shallowest
            has layers.
        blocks: how many blocks of samples to use; more is more exact and costs in proportion.

    Standard error: jackknife over blocks. Cost: R² · block² / 2 multiplications a block and layer,
    in float32 with a shift that keeps centring accurate.
    """
    kernels.check(kernel)
    if index not in ("cka", "cka-debiased"):
        raise DataError(f"index must be cka or cka-debiased for many networks; found {index!r}")
    if kernel == "transport":
        raise DataError("transport is not offered for many networks; use compare for each pair")
    if len(reps) < 2:
        raise DataError(f"expected at least two networks to compare, found {len(reps)}")
    first = reps[0]
    for other in reps[1:]:
        check_recorded(first, other, kernel)
        obstacle = no_blocks(first, other)
        if obstacle:
            raise MismatchError(
                f"{first.name!r} and {other.name!r} cannot be compared: {obstacle}; record all "
                "networks on the same samples with the same seed and block size"
            )
    if centre is None:
        centre = kernel == "features"
    chosen = _matched_layers(reps, layer)
    samples = float("inf") if index == "cka-debiased" else float(first.samples)
    sizes = first.block_sizes[:blocks]
    depth = len(chosen[0])
    scores = torch.zeros(len(reps), len(reps), dtype=torch.float64)
    left_out = torch.zeros(len(sizes), len(reps), len(reps), dtype=torch.float64)
    for at in range(depth):
        numerators = _numerators([row[at] for row in chosen], kernel, sizes, samples, centre)
        scores += _normalised(numerators.sum(0)) / depth
        left_out += _normalised(numerators.sum(0) - numerators) / depth
    k = len(sizes)
    spread = left_out - left_out.mean(0)
    stderr = (spread.square().sum(0) * (k - 1) / k).sqrt() if k > 1 else scores * torch.nan
    if index == "cka":
        scores = scores.clamp(0, 1)
    return ComparisonMatrix(
        models=tuple(rep.name for rep in reps),
        scores=scores.numpy(),
        stderr=stderr.numpy(),
        layers=tuple(tuple(x.name for x in row) for row in chosen),
        kernel=kernel,
        index=index,
        centre=centre,
        samples=sum(sizes),
    )


def _matched_layers(reps: Sequence[Representation], layer: str | int | None) -> list[list[Layer]]:
    if layer is not None:
        return [[rep[layer]] for rep in reps]
    depth = min(len(rep) for rep in reps)
    at = np.linspace(0, 1, depth) if depth > 1 else np.ones(1)
    return [[rep[int(i)] for i in np.rint(at * (len(rep) - 1))] for rep in reps]


def _numerators(
    layers: Sequence[Layer], kernel: str, sizes: Sequence[int], samples: float, centre: bool
) -> Tensor:  # (k, R, R) float64
    """⟨K1, K2⟩ of every pair of layers, block by block; the sum over blocks is what CKA needs."""
    kinds = kernels.needs(kernel)
    scale = {
        kind: torch.tensor([max(x.moments[f"trace_{kind}"], 1e-300) for x in layers])
        for kind in kinds
    }
    count = from_blocks.counts(sizes).sum(0)
    shift = torch.zeros(len(layers), 1)
    out = []
    for b, n in enumerate(sizes):
        triangles, diagonals = {}, {}
        for kind in kinds:
            packed = torch.stack(
                [x.tensor(f"{kind}.blocks.triangle")[b, : n * (n - 1) // 2] for x in layers]
            )
            diagonal = torch.stack([x.tensor(f"{kind}.blocks.diagonal")[b, :n] for x in layers])
            # each network's kernel at mean diagonal one: float32 then holds products of any scale
            diagonal = diagonal * (sum(sizes) / scale[kind])[:, None]
            triangles[kind] = packing.unpack16(packed, diagonal, dtype=torch.float32)
            diagonals[kind] = diagonal
        one = dict.fromkeys(kinds, 1.0)
        triangle = kernels.entries(kernel, triangles, one)
        diagonal = kernels.entries(kernel, diagonals, one)
        if centre and b == 0:  # a constant added to a kernel leaves it the same once centred
            shift = triangle.mean(1, keepdim=True)
        side = from_blocks.side(triangle.sub_(shift), diagonal - shift)
        small = tuple(x.double() for x in side[1:])
        sums = from_blocks.pair_sums((side[0], *small), (side[0], *small))
        out.append(from_blocks.inner_product(sums, count, samples, centre=centre))
    return torch.stack(out)


def _normalised(numerators: Tensor) -> Tensor:  # (..., R, R)
    own = numerators.diagonal(dim1=-2, dim2=-1)
    product = own.clamp_min(0)[..., :, None] * own.clamp_min(0)[..., None, :]
    return numerators / torch.where(product > 0, product, torch.nan).sqrt()


# -- clustering ---------------------------------------------------------------------------------


def average_linkage(distance: np.ndarray) -> np.ndarray:  # (n, n) -> (n-1, 4)
    """Agglomerative clustering by mean distance, by chains of nearest neighbours, in O(n²).

    Reference: Müllner 2011, arXiv 1109.2378.

    >>> average_linkage(np.array([[0, 1, 4], [1, 0, 4], [4, 4, 0.0]])).tolist()
    [[0.0, 1.0, 1.0, 2.0], [2.0, 3.0, 4.0, 3.0]]
    """
    n = len(distance)
    d = np.array(distance, dtype=float)
    np.fill_diagonal(d, np.inf)
    size = np.ones(n)
    merges: list[tuple[int, int, float]] = []
    chain: list[int] = []
    alive = np.ones(n, bool)
    while len(merges) < n - 1:
        if not chain:
            chain.append(int(np.flatnonzero(alive)[0]))
        here = chain[-1]
        near = int(d[here].argmin())
        if len(chain) > 1 and d[here, chain[-2]] <= d[here, near]:
            near = chain[-2]  # mutual nearest neighbours: merge them
            del chain[-2:]
            merges.append((here, near, d[here, near]))
            total = size[here] + size[near]
            d[here] = d[:, here] = (size[here] * d[here] + size[near] * d[near]) / total
            size[here], d[here, here], alive[near] = total, np.inf, False
            d[near] = d[:, near] = np.inf
        else:
            chain.append(near)
    return _relabelled(merges, n)


def _relabelled(merges: list[tuple[int, int, float]], n: int) -> np.ndarray:
    """Merges sorted by height, clusters numbered n, n+1, … in that order."""
    label, size = list(range(n)), [1.0] * n
    parent = list(range(n))

    def find(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    out = []
    for a, b, height in sorted(merges, key=lambda merge: merge[2]):
        i, j = find(a), find(b)
        left, right = sorted((label[i], label[j]))
        parent[j] = i
        size[i] += size[j]
        label[i] = n + len(out)
        out.append((left, right, height, size[i]))
    return np.array(out, dtype=float).reshape(-1, 4)


def leaf_order(links: np.ndarray) -> list[int]:
    """The leaves of a dendrogram from one end to the other."""
    n = len(links) + 1
    groups: dict[int, list[int]] = {i: [i] for i in range(n)}
    for i, (left, right, _, _) in enumerate(links):
        groups[n + i] = groups.pop(int(left)) + groups.pop(int(right))
    return next(iter(groups.values()))
