"""`compare_all`: many networks on one data set, compared in one matrix product a block.

A kernel block is a long vector, and CKA is a bilinear form in two of them: an inner product of the
entries plus inner products of row sums and diagonals. So all pairs of R networks cost one R × t by
t × R product a block and layer, and each Gram matrix is read once. The result clusters them.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError, MismatchError, ResemblanceWarning
from ..representation.representation import Layer, Representation
from . import block_estimates as from_blocks
from . import indices, kernels
from .comparison import plain
from .pair_sums import factors, least_visible
from .two_networks import check_recorded, constant_layer, no_blocks

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_ROWS = 256  # kernels of blocks to work on at a time


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
        """Merges by average linkage, as SciPy has them: left, right, 1 − similarity, size."""
        return average_linkage(1 - np.nan_to_num(self.scores))

    def order(self) -> list[int]:
        """Models in the order of the dendrogram's leaves: like beside like."""
        return leaf_order(self.clusters())

    def plot(self) -> Figure:
        """A clustered map with its dendrogram."""
        from ..views import figures as plot

        return plot.clustered(self.scores, self.models, self.order(), self.clusters(), self.heading)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings; NaN becomes None."""
        return {name: plain(value) for name, value in asdict(self).items()}


def compare_all(
    reps: Sequence[Representation],
    *,
    kernel: str = "product",
    index: str = "cka",
    centre: bool | None = None,
    layer: str | int | None = None,
    blocks: int = 16,
    device: str | torch.device = "cpu",
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
        device: where to compute, such as `"cuda"`; on the CPU by default.

    A layer that is constant on these data makes the scores of its network undefined (NaN), and a
    warning names it. Bias and standard error: as in `compare`. Cost: about R² · block² / 4
    multiplications a block and layer, in float32 on kernels whose rows are levelled first, which
    keeps centring accurate (in float64 on a GPU, which may be set to round float32 products);
    memory for blocks + 2 matrices R × R in float64.
    """
    kernels.check(kernel)
    if index not in ("cka", "cka-debiased"):
        raise DataError(f"index must be cka or cka-debiased for many networks; found {index!r}")
    if kernel == "transport":
        raise DataError("transport is not offered for many networks; use compare for each pair")
    if blocks < 1:
        raise DataError(f"blocks must be at least 1; found {blocks}")
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
    weight = from_blocks.weights(sizes, first.samples, centre=centre)
    at_once = max(1, _ROWS // len(reps))
    used = [run for run in from_blocks.runs(sizes, at_once) if weight[run[0]]]
    share = (weight[weight > 0] / weight.sum()).to(device)
    depth = len(chosen[0])
    scores = torch.zeros(len(reps), len(reps), dtype=torch.float64, device=device)
    left_out = torch.zeros(len(share), *scores.shape, dtype=torch.float64, device=device)
    for at in range(depth):
        layers = [row[at] for row in chosen]
        numerators, visible = _numerators(layers, kernel, sizes, used, samples, centre, device)
        numerators.mul_(share[:, None, None])
        visible.mul_(share[:, None])
        whole, seen = numerators.sum(0), visible.sum(0)
        scores += _normalised(whole, seen) / depth
        for i in range(len(share)):
            left_out[i] += _normalised(whole - numerators[i], seen - visible[i]) / depth
        constant = (whole.diagonal() <= seen).tolist()
        for rep, x, dead in zip(reps, layers, constant, strict=True):
            if dead:
                warnings.warn(constant_layer(rep.name, x.name), ResemblanceWarning, stacklevel=2)
    scores, left_out = scores.cpu(), left_out.cpu()
    stderr = from_blocks.jackknife(list(left_out), torch.full_like(scores, torch.nan))
    scores = scores.clamp(0.0 if index == "cka" else -1.0, 1.0)
    return ComparisonMatrix(
        models=tuple(rep.name for rep in reps),
        scores=scores.numpy(),
        stderr=stderr.numpy(),
        layers=tuple(tuple(x.name for x in row) for row in chosen),
        kernel=kernel,
        index=index,
        centre=centre,
        samples=sum(sum(sizes[start:stop]) for start, stop in used),
    )


def _matched_layers(reps: Sequence[Representation], layer: str | int | None) -> list[list[Layer]]:
    if layer is not None:
        return [[rep[layer]] for rep in reps]
    depth = min(len(rep) for rep in reps)
    at = np.linspace(0, 1, depth) if depth > 1 else np.ones(1)
    return [[rep[int(i)] for i in np.rint(at * (len(rep) - 1))] for rep in reps]


def _numerators(
    layers: Sequence[Layer],
    kernel: str,
    sizes: Sequence[int],  # of the blocks
    used: Sequence[tuple[int, int]],  # blocks [start, stop) of one size, to be read together
    samples: float,
    centre: bool,
    device: str | torch.device,
) -> tuple[Tensor, Tensor]:  # (k, R, R), (k, R) float64
    """⟨K1, K2⟩ of every pair of layers, block by block, and what is round-off of ⟨K1, K1⟩."""
    out, visible = [], []
    unit = sum(sum(sizes[start:stop]) for start, stop in used)
    for start, stop in used:
        n, shape = sizes[start], (stop - start, len(layers), -1)
        triangle, diagonal = _entries(layers, kernel, slice(start, stop), n, unit, device)
        visible.append(least_visible(diagonal.double()).view(shape[:2]))
        if centre:
            diagonal = _level(triangle, diagonal)
        # Of the nine sums three remain, as levelled rows sum to zero.
        c = factors("cka", n, samples, centre=centre)
        d = diagonal.double().view(shape)
        total = d.sum(2, keepdim=True)
        products = torch.stack([symmetric_product(x) for x in triangle.view(shape)]).double()
        products.mul_(2 * c[0]).baddbmm_(d, d.mT, alpha=float(c[2]))
        out.append(products.baddbmm_(total, total.mT, alpha=float(c[6])))
    return torch.cat(out), torch.cat(visible)


def _entries(
    layers: Sequence[Layer],
    kernel: str,
    which: slice,
    n: int,
    unit: float,
    device: str | torch.device,
) -> tuple[Tensor, Tensor]:  # (g·R, t), (g·R, n) float32, on a GPU float64
    """Some blocks of n samples, of all networks, each divided by its kernel's trace over `unit`.

    With entries of about one, float32 holds products of kernels of any scale. Rows come block by
    block, all networks of each.
    """
    entries, diagonals = {}, {}
    kinds = kernels.needs(kernel)
    for kind in kinds:
        packed = torch.stack(
            [x.tensor(f"{kind}.blocks.triangle")[which, : n * (n - 1) // 2] for x in layers], 1
        )
        diagonal = torch.stack([x.tensor(f"{kind}.blocks.diagonal")[which, :n] for x in layers], 1)
        trace = torch.tensor([max(x.moments[f"trace_{kind}"], 1e-300) for x in layers]).double()
        packed = packed.flatten(0, 1).to(device)
        dtype = torch.float64 if packed.is_cuda else torch.float32
        diagonal = (diagonal.double() * (unit / trace)[:, None]).flatten(0, 1)
        diagonal = diagonal.to(packed.device, dtype)
        roots = diagonal.sqrt()
        entry = packed.to(dtype).mul_(1 / torch.iinfo(torch.int16).max)
        if packed.is_cuda:
            rows, columns = torch.tril_indices(n, n, -1, device=packed.device)
            entry.mul_(roots[:, rows]).mul_(roots[:, columns])
        else:
            for i, row in _rows(entry, n):  # a gather of both roots would take longer
                row.mul_(roots[:, i : i + 1]).mul_(roots[:, :i])
        entries[kind], diagonals[kind] = entry, diagonal
    one = dict.fromkeys(kinds, torch.ones(()))
    return kernels.entries(kernel, entries, one), kernels.entries(kernel, diagonals, one)


def _rows(triangle: Tensor, n: int) -> Iterator[tuple[int, Tensor]]:
    """Row i of every packed triangle (R, t), as a view (R, i)."""
    for i in range(1, n):
        yield i, triangle[:, i * (i - 1) // 2 : i * (i + 1) // 2]


def _level(triangle: Tensor, diagonal: Tensor) -> Tensor:
    """`block_sums.level` in place, by matrix products; returns the new diagonal."""
    n = diagonal.shape[1]
    step = max(1, 2**22 // n)  # entries at a time, so that large blocks need no large matrix
    parts = [(i, min(i + step, triangle.shape[1])) for i in range(0, triangle.shape[1], step)]
    sums = torch.zeros_like(diagonal)
    for start, stop in parts:
        sums.addmm_(triangle[:, start:stop], _members(n, start, stop).to(sums))
    u = sums / (n - 2) - sums.sum(1, keepdim=True) / (2 * (n - 1) * (n - 2))
    for start, stop in parts:
        triangle[:, start:stop].addmm_(u, _members(n, start, stop).to(u).T, alpha=-1)
    return diagonal - 2 * u


@functools.lru_cache(maxsize=1)
def _members(n: int, start: int, stop: int) -> Tensor:  # (stop - start, n)
    """Ones at the two samples that each entry of a packed triangle belongs to.

    Entries times this are row sums, and this times u is u_i + u_j.
    """
    rows, columns = torch.tril_indices(n, n, -1)[:, start:stop]
    out = torch.zeros(stop - start, n)
    return out.scatter_(1, rows[:, None], 1.0).scatter_(1, columns[:, None], 1.0)


def symmetric_product(x: Tensor, rows: int = 128) -> Tensor:  # (R, t) -> (R, R)
    """x xᵀ with the half below the diagonal copied instead of computed.

    >>> x = torch.arange(6.0).view(3, 2)
    >>> torch.equal(symmetric_product(x, rows=2), x @ x.T)
    True
    """
    out = x.new_empty(len(x), len(x))
    for start in range(0, len(x), rows):
        stop = min(start + rows, len(x))
        torch.mm(x[start:stop], x[start:].T, out=out[start:stop, start:])
        out[stop:, start:stop] = out[start:stop, stop:].T
    return out


def _normalised(numerators: Tensor, visible: Tensor) -> Tensor:  # (R, R), (R,) -> (R, R)
    own = numerators.diagonal()
    own = own * (own > visible)
    return numerators / indices.norms(own, own)


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

    out: list[tuple[int, int, float, float]] = []
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
