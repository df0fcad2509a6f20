"""Indices from the exact kernel of all samples, which small data keep.

Nothing is estimated: scores are those of the N × N kernels, up to their storage in 16 bits. The
standard error says how far they would move with other samples of the same source: groups of samples
are left out in turn. A group is a run of the seeded order, so that what goes with it is a strip of
the kernel.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .._ops import packed_kernels as packing
from ..representation.layer import Layer
from . import chance_level as chance
from . import error_bars, indices, kernels
from .block_estimates import carriers, is_centred, prepared
from .combinations import Kernel, Question
from .estimate import Estimate
from .pair_sums import Side, factors
from .stored_kernels import read, round_off

INDICES = ("cka", "cka-debiased", "nbs", "spectral", "rsa")
NBS_SAMPLES = 512  # up to these, NBS is taken from whole kernels unless asked otherwise
_GROUPS = 32  # of samples, to be left out in turn
_DRAWS, _DRAWN, _SETS = 256, 128, 8  # permutations, of so many samples, out of so many sets

Spans = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Pairing:
    """Layers that hold the kernels of all N samples, in the same order, and what is asked of them.

    Every row is compared with every column, once more without each span of samples.
    """

    rows: Sequence[Layer]
    columns: Sequence[Layer]
    asked: Question
    samples: int
    spans: Spans
    device: str | torch.device = "cpu"


def is_whole(layer: Layer, kernel: Kernel) -> bool:
    """Whether a layer holds the kernel of all samples."""
    return all(layer.recorded(kind).whole is not None for kind in kernels.needs(kernel))


def groups(samples: int) -> Spans:
    """Runs of samples to leave out, about 32 in all; single samples where there are fewer.

    >>> groups(3), len(groups(300))
    ([(0, 1), (1, 2), (2, 3)], 32)
    """
    count = min(_GROUPS, samples)
    ends = [samples * i // count for i in range(count + 1)]
    return list(itertools.pairwise(ends))


def scores(
    of: Pairing,
    seed: int | None,  # of the chance level; None does without
) -> Estimate:
    """An index between layers that hold the kernels of all N samples, in the same order.

    Bias: none but of 16-bit storage, below 1e-4 for CKA; the score is that of these N samples.
    Standard error: a jackknife over the `spans` of samples, of the score on N samples drawn anew
    (for `cka-debiased`, which does not depend on N, of the population's); for `nbs` and `spectral`
    to first order. Chance: the mean over all permutations, exactly, and its 95 % quantile by the
    moments of drawn ones. Cost: O(L1 L2 N²); O(L1 L2 N³) for `nbs`.
    """
    asked, samples, spans, device = of.asked, of.samples, of.spans, of.device
    if asked.index == "nbs":
        return _nbs(of)
    if asked.index == "spectral":
        return _spectral(of)
    one, two = (_kernels(layers, asked, samples, device) for layers in (of.rows, of.columns))
    every, left = _sums(one.side, two.side, samples, spans)
    fewest = 4 if is_centred(asked) else 2

    def score(sums: list[Tensor], n: int) -> Tensor:  # (9, ...) of both, one, two
        add_up = factors(asked.index, n, samples, centre=asked.centre).to(device)
        cross, own1, own2 = (torch.tensordot(add_up, x, 1) for x in sums)
        return cross / indices.norms(own1 * alive[0], own2 * alive[1])

    add_up = factors(asked.index, samples, samples, centre=asked.centre).to(device)
    own = [torch.tensordot(add_up, x, 1) for x in every[1:]]
    alive = (own[0] > one.visible, own[1] > two.visible)
    kept = [samples - (stop - start) for start, stop in spans]
    value = score(every, samples)
    nothing = torch.full_like(value, torch.nan)
    out = [score(x, n) if n >= fewest else nothing for x, n in zip(left, kept, strict=True)]
    levels: tuple[Tensor, ...] = ()
    if seed is not None:
        norms = indices.norms(own[0] * alive[0], own[1] * alive[1])
        mean = torch.tensordot(add_up, chance.permuted_sums(every[0], samples), 1) / norms
        generator = torch.Generator().manual_seed(seed)
        draws = _drawn(one.side, two.side, samples, add_up, generator)
        levels = (mean, mean + chance.high(draws) / norms)
    return Estimate.of(
        value,
        [error_bars.left_out(torch.stack(out))],
        alive,
        levels,
        low=0.0 if asked.index == "cka" else -1.0,
        n_eff=(one.n_eff, two.n_eff),
    )


class _Kernels(NamedTuple):
    side: Side  # of all samples as one block; triangles in float32
    visible: Tensor  # (L,)
    n_eff: Tensor  # (L,)


def _kernels(
    layers: Sequence[Layer], asked: Question, samples: int, device: str | torch.device
) -> _Kernels:
    """Kernels made ready for the index: at a mean diagonal of one, levelled, or as distances."""
    how = {"loose": is_centred(asked), "whole": True}
    sides, visible, carried = [], [], []
    for layer in layers:
        triangle, diagonal = read([layer], asked.kernel, slice(0, 1), samples, device, **how)
        unit = diagonal.mean() if diagonal.mean() > 0 else torch.ones_like(diagonal.mean())
        least = round_off([layer], asked.kernel, slice(0, 1), samples, whole=True)
        visible.append(least.to(device) / unit**2)
        raw = (triangle / unit, diagonal / unit)
        found = prepared(*raw, asked)
        carried.append(error_bars.effective(carriers(asked, found, raw).T))
        sides.append(found._replace(triangle=found.triangle.float()))
    side = Side(*(torch.cat(part) for part in zip(*sides, strict=True)))
    return _Kernels(side, torch.cat(visible), torch.cat(carried))


def _sums(
    one: Side, two: Side, samples: int, spans: Spans
) -> tuple[list[Tensor], list[list[Tensor]]]:
    """`pair_sums` of both sides, and of each with itself: of all samples, and without each span."""
    triangles = (x.triangle.double() for x in (one, two))
    pairs = [2 * x for x in _products(*triangles)]
    gone, seen = [], []
    for start, stop in spans:
        strips = [_strip(x, start, stop) for x in (one, two)]
        inner = [x[:, :, start:stop] for x in strips]
        full, inside = (_products(*(x.flatten(1) for x in part)) for part in (strips, inner))
        gone.append([2 * x - y for x, y in zip(full, inside, strict=True)])
        seen.append([x.sum(1) for x in strips])
    sides = ((one.diagonal, one.rows), (two.diagonal, two.rows))
    left = []
    for (start, stop), less, columns in zip(spans, gone, seen, strict=True):
        keep = torch.ones(samples, dtype=torch.bool, device=one.diagonal.device)
        keep[start:stop] = False
        rest = [(d[:, keep], (r - c)[:, keep]) for (d, r), c in zip(sides, columns, strict=True)]
        left.append(_nine([x - y for x, y in zip(pairs, less, strict=True)], *rest))
    return _nine(pairs, *sides), left


def _strip(x: Side, start: int, stop: int) -> Tensor:  # (L, stop - start, N)
    """Rows of kernels, with zeros on the diagonal, in float64."""
    n = x.diagonal.shape[1]
    places = packing.square_places(n, x.diagonal.device)[start:stop]
    out = x.triangle.index_select(1, places.flatten()).view(-1, stop - start, n).double()
    out[:, range(stop - start), range(start, stop)] = 0.0
    return out


def _products(x: Tensor, y: Tensor) -> list[Tensor]:  # (L1, t), (L2, t)
    return [x @ y.T, x.square().sum(1), y.square().sum(1)]


def _nine(
    pairs: Sequence[Tensor], one: tuple[Tensor, Tensor], two: tuple[Tensor, Tensor]
) -> list[Tensor]:
    (d1, r1), (d2, r2) = one, two

    def of_both() -> Tensor:
        t1, s1, t2, s2 = (x.sum(1) for x in (d1, r1, d2, r2))
        vectors = [r1 @ r2.T, d1 @ d2.T, d1 @ r2.T, r1 @ d2.T]
        totals = [torch.outer(*x) for x in ((s1, s2), (t1, t2), (t1, s2), (s1, t2))]
        return torch.stack([pairs[0], *vectors, *totals])

    def of_one(a: Tensor, d: Tensor, r: Tensor) -> Tensor:
        t, s, dr = d.sum(1), r.sum(1), (d * r).sum(1)
        rows = [a, (r * r).sum(1), (d * d).sum(1), dr, dr]
        return torch.stack([*rows, s * s, t * t, t * s, t * s])

    return [of_both(), of_one(pairs[1], d1, r1), of_one(pairs[2], d2, r2)]


def _drawn(
    one: Side, two: Side, samples: int, add_up: Tensor, generator: torch.Generator
) -> Tensor:  # (L1, L2, p)
    """Inner products under permuted pairing, less a constant: p draws of them.

    Σ K1_ij K2_ij of a permutation falls into what row sums say, which is had for all N samples, and
    the rest, which is a sum over pairs without any part of first order. Of the latter the law is
    that of fewer samples, but for its size: it is drawn from 128 of them at a time.
    """
    size, device = min(samples, _DRAWN), one.diagonal.device
    each = -(-_DRAWS // _SETS)
    effects = [_row_effects(x) for x in (one, two)]
    parts = [
        _subsets(x, u, chance.orders(_SETS, 1, samples, generator)[:, 0, :size].to(device))
        for x, u in zip((one, two), effects, strict=True)
    ]
    first = torch.zeros_like(add_up)
    first[0] = add_up[0]
    orders = chance.orders(_SETS, each, size, generator).to(device)
    pairs = chance.drawn(parts[0], parts[1], orders, first).permute(1, 2, 0, 3).flatten(2)
    pairs *= (samples * (samples - 1) / (size * (size - 1))) ** 0.5
    orders = chance.orders(1, pairs.shape[-1], samples, generator)[0].to(device)  # (p, N)
    # Σ_{i≠j} (u_i + u_j)(v_i + v_j) is 2(N − 2) Σ u_i v_i and a constant
    (d1, r1, u1), (d2, r2, u2) = (
        (x.diagonal, x.rows, u) for x, u in zip((one, two), effects, strict=True)
    )
    with_r, with_d = add_up[1] * r1 + add_up[3] * d1, add_up[2] * d1 + add_up[4] * r1
    mine = torch.cat([with_r, with_d, 2 * (samples - 2) * add_up[0] * u1], 1)  # (L1, 3N)
    theirs = torch.cat([x[:, orders] for x in (r2, d2, u2)], 2)  # (L2, p, 3N)
    return pairs + torch.einsum("in,jpn->ijp", mine, theirs)


def _row_effects(x: Side) -> Tensor:  # (L, N)
    """u, with which K_ij − u_i − u_j sums to zero in every row, as in `pair_sums.level`."""
    n = x.diagonal.shape[1]
    if n < 3:
        return torch.zeros_like(x.diagonal)
    return x.rows / (n - 2) - x.total[:, None] / (2 * (n - 1) * (n - 2))


def _subsets(x: Side, u: Tensor, chosen: Tensor) -> Side:  # chosen (g, m)
    """Some sets of samples as blocks, of all layers each, with the effects of rows taken off."""
    i, j = packing.lower(chosen.shape[1], chosen.device)
    rows, columns = chosen[:, i], chosen[:, j]  # (g, t)
    places = packing.square_places(x.diagonal.shape[1], chosen.device)[rows, columns]
    triangle = x.triangle[:, places] - u[:, rows] - u[:, columns]  # (L, g, t)
    diagonal = x.diagonal[:, chosen].transpose(0, 1).flatten(0, 1)
    nothing = torch.zeros_like(diagonal)
    of_blocks = triangle.transpose(0, 1).flatten(0, 1)
    return Side(of_blocks, diagonal, nothing, nothing.sum(1), nothing.sum(1))


# -- indices that are no sums over pairs -----------------------------------------------------------


class _Spectrum(NamedTuple):
    values: Tensor  # (r,) above round-off
    vectors: Tensor  # (N, r)
    alive: bool


def _spectra(of: Pairing, layers: Sequence[Layer]) -> list[_Spectrum]:
    """Eigenvalues of kernels that lie above those of the rounding of their entries."""
    centre, out = of.asked.centre, []
    for layer in layers:
        stored = ([layer], of.asked.kernel, slice(0, 1), of.samples)
        square = packing.squares(*read(*stored, of.device, loose=centre, whole=True))[0]
        values, vectors = torch.linalg.eigh(indices.centred(square) if centre else square)
        least = round_off(*stored, whole=True).to(of.device)
        # a symmetric matrix of independent entries has eigenvalues up to 2σ√N
        seen = values > (0.64 * least * of.samples).sqrt()
        out.append(_Spectrum(values[seen], vectors[:, seen], bool(seen.any())))
    return out


def _nbs(of: Pairing) -> Estimate:
    """‖AᵀB‖_* / (‖A‖_F ‖B‖_F) with K = AAᵀ; with AᵀB = UΣVᵀ, sample i adds (A U)_i·(B V)_i."""
    same = list(of.rows) == list(of.columns)
    found = [_spectra(of, of.rows)]
    found.append(found[0] if same else _spectra(of, of.columns))
    factors = [[x.vectors * x.values.sqrt() for x in side] for side in found]
    shares = torch.stack(
        [torch.stack([_nuclear_shares(x, y) for y in factors[1]]) for x in factors[0]]
    )
    traces = [torch.stack([x.square().sum(1) for x in side]) for side in factors]

    def score(top: Tensor, *trace: Tensor) -> Tensor:
        return top / indices.norms(*trace)

    value = score(*(x.sum(-1) for x in (shares, *traces)))
    gone = [[x[..., a:b].sum(-1) for a, b in of.spans] for x in (shares, *traces)]
    left = [x.sum(-1) - torch.stack(y) for x, y in zip((shares, *traces), gone, strict=True)]
    alive = [torch.tensor([x.alive for x in side]) for side in found]
    n_eff = [error_bars.effective(x.T) for x in traces]
    return Estimate.of(value, [error_bars.left_out(score(*left))], alive, n_eff=n_eff)


def _nuclear_shares(a: Tensor, b: Tensor) -> Tensor:  # (N, r), (N, s) -> (N,)
    if not a.shape[1] or not b.shape[1]:
        return a.new_zeros(len(a))
    u, _, vt = torch.linalg.svd(a.mT @ b, full_matrices=False)
    return ((a @ u) * (b @ vt.mT)).sum(1)


def _spectral(of: Pairing) -> Estimate:
    """Cosine of sorted eigenvalues; to first order, λ loses λ Σ v_i² with the samples i."""
    whole, left, alive = [], [], []
    for layers in (of.rows, of.columns):
        found = _spectra(of, layers)
        padded = torch.zeros(len(of.spans) + 1, len(found), of.samples, dtype=torch.float64)
        for i, x in enumerate(found):
            lost = torch.stack([x.vectors[a:b].square().sum(0) for a, b in of.spans])
            each = torch.cat([x.values[None], x.values * (1 - lost)]).cpu()
            padded[:, i, of.samples - each.shape[1] :] = each
        whole.append(padded[0])
        left.append(padded[1:])
        alive.append(torch.tensor([x.alive for x in found]))
    deviations = error_bars.left_out(indices.cosines(*left))
    return Estimate.of(indices.cosines(*whole), [deviations], alive)
