"""`compare_all`: many networks on one data set, compared in one matrix product a block.

A kernel block is a long vector, and CKA is a bilinear form in two of them: an inner product of the
entries plus inner products of row sums and diagonals. So all pairs of R networks cost one R × t by
t × R product a block and layer, and each Gram matrix is read once.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError, MismatchError, ResemblanceWarning
from ..representation.layer import Layer
from ..representation.representation import Representation
from . import block_estimates, combinations, indices
from .combinations import Kernel, Question
from .comparison_matrix import ComparisonMatrix
from .pair_sums import factors, least_visible, level_in_place
from .two_networks import check_recorded, constant_layer, no_blocks

_ROWS = 256  # kernels of blocks to work on at a time


def compare_all(
    reps: Sequence[Representation],
    *,
    kernel: Kernel = "product",
    index: Literal["cka", "cka-debiased"] = "cka",
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
    combinations.check("compare_all", kernel, index)
    if blocks < 1:
        raise DataError(f"blocks must be at least 1; found {blocks}")
    _refuse_incomparable(reps, kernel)
    asked = Question(kernel, index, kernel == "features" if centre is None else centre, "blocks")
    chosen = _matched_layers(reps, layer)
    depth = len(chosen[0])
    sizes = reps[0].block_sizes[:blocks]
    weight = block_estimates.weights(sizes, reps[0].samples, centre=asked.centre)
    runs = block_estimates.runs(sizes, max(1, _ROWS // len(reps)))
    used = [(slice(*run), sizes[run[0]]) for run in runs if weight[run[0]]]
    share = (weight[weight > 0] / weight.sum()).to(device)
    scores = torch.zeros(len(reps), len(reps), dtype=torch.float64, device=device)
    left_out = torch.zeros(len(share), *scores.shape, dtype=torch.float64, device=device)
    for layers in zip(*chosen, strict=True):
        numerators, visible = _numerators(layers, asked, used, reps[0].samples, device)
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
    return ComparisonMatrix(
        models=tuple(rep.name for rep in reps),
        scores=scores.cpu().clamp(0.0 if index == "cka" else -1.0, 1.0).numpy(),
        stderr=block_estimates.jackknife(left_out.cpu()).numpy(),
        layers=tuple(tuple(x.name for x in row) for row in chosen),
        kernel=kernel,
        index=index,
        centre=asked.centre,
        samples=_samples(used),
    )


def _refuse_incomparable(reps: Sequence[Representation], kernel: Kernel) -> None:
    if len(reps) < 2:
        raise DataError(f"expected at least two networks to compare, found {len(reps)}")
    first = reps[0]
    for other in reps[1:]:
        check_recorded(first, other, kernel)
        if obstacle := no_blocks(first, other):
            raise MismatchError(
                f"{first.name!r} and {other.name!r} cannot be compared: {obstacle}; record all "
                "networks on the same samples with the same seed and block size"
            )


def _matched_layers(reps: Sequence[Representation], layer: str | int | None) -> list[list[Layer]]:
    if layer is not None:
        return [[rep[layer]] for rep in reps]
    depth = min(len(rep) for rep in reps)
    at = np.linspace(0, 1, depth) if depth > 1 else np.ones(1)
    return [[rep[int(i)] for i in np.rint(at * (len(rep) - 1))] for rep in reps]


def _numerators(
    layers: Sequence[Layer],
    asked: Question,
    used: Sequence[tuple[slice, int]],  # blocks to be read together, and the samples of each
    samples: int,
    device: str | torch.device,
) -> tuple[Tensor, Tensor]:  # (k, R, R), (k, R) float64
    """⟨K1, K2⟩ of every pair of layers, block by block, and what is round-off of ⟨K1, K1⟩."""
    out, visible = [], []
    for which, n in used:
        shape = (which.stop - which.start, len(layers), -1)
        triangle, diagonal = block_estimates.read(
            layers, asked.kernel, which, n, device, unit=_samples(used)
        )
        visible.append(least_visible(diagonal.double()).view(shape[:2]))
        if asked.centre:
            diagonal = level_in_place(triangle, diagonal)
        # Of the nine sums three remain, as levelled rows sum to zero.
        c = factors(asked.index, n, samples, centre=asked.centre)
        d = diagonal.double().view(shape)
        total = d.sum(2, keepdim=True)
        products = torch.stack([symmetric_product(x) for x in triangle.view(shape)]).double()
        products.mul_(2 * c[0]).baddbmm_(d, d.mT, alpha=float(c[2]))
        out.append(products.baddbmm_(total, total.mT, alpha=float(c[6])))
    return torch.cat(out), torch.cat(visible)


def _samples(used: Sequence[tuple[slice, int]]) -> int:
    return sum(n * (which.stop - which.start) for which, n in used)


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
