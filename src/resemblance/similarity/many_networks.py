"""`compare_all`: many networks on one data set, compared in one matrix product a block.

A kernel block is a long vector, and CKA is a bilinear form in two of them: an inner product of the
entries plus inner products of row sums and diagonals. So all pairs of R networks cost one R × t by
t × R product a block and layer, and each Gram matrix is read once.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from .._ops.device_choice import usable
from .._whole_numbers import whole_number
from ..errors import DataError, MismatchError, ResemblanceWarning
from ..representation.as_given import Given, recordings
from ..representation.layer import Layer
from ..representation.representation import Representation
from . import (
    block_estimates,
    combinations,
    indices,
    layer_matching,
    left_out_sequences,
    stored_kernels,
    whole_estimates,
)
from .combinations import Kernel, Question
from .comparison import mean_over_layers
from .comparison_matrix import ComparisonMatrix, MatchedAllBy
from .doubtful_errors import untrusted_of_many
from .error_bars import Carried
from .left_out_sequences import Group
from .pair_sums import factors, level_in_place
from .predictions_of_many import behaviour_of_all
from .two_networks import (
    check_recorded,
    constant_layer,
    no_blocks,
    refuse_few,
)
from .whole_estimates import is_whole

_ROWS = 256  # kernels of blocks to work on at a time
_FEW, _SAMPLES = 32, 2048  # networks that are compared on all samples; enough samples for more


def compare_all(
    reps: Iterable[Given],
    *,
    kernel: Kernel = "product",
    index: Literal["cka", "cka-debiased"] = "cka",
    centre: bool | None = None,
    layer: str | int | None = None,
    blocks: int | None = None,
    device: str | torch.device = "cpu",
) -> ComparisonMatrix:
    """All pairs of networks recorded on the same samples.

    Args:
        reps: two or more, or paths, recorded on the same samples with the same settings.
        kernel, centre: as in `compare`.
        index: `cka` or `cka-debiased`.
        layer: a name or position to compare at; names are seen through wrappers. None averages
            over matched layers: networks of equal depth by name, as in `compare`, where at least
            half of their layers have namesakes in all of them, else by position; others by relative
            depth, at as many depths as the shallowest has layers. `matched_by` says which.
        blocks: how many blocks of samples to use; more is more exact and costs in proportion. None
            takes all for up to 32 networks (of small data, the kernel of all samples, where it was
            kept), and beyond that as many as hold 2,048 samples.
        device: where to compute, such as `"cuda"`; on the CPU by default.

    A score is the mean over matched layers as `Comparison.mean` has it: where `compare` matches the
    same ones, that of `compare(estimator="blocks")` on the same samples, to 1e-6 (in float32 on a
    CPU, on kernels whose rows are levelled first, which keeps centring accurate; in float64 on a
    GPU, which may be set to round float32 products). A layer that is constant on these data is left
    out of the means, and a warning names it. Standard error: the jackknife of the mean, over blocks
    or groups of samples, which says how far it would move with other samples of the same source.

    What the networks predict is compared where they have as many classes: `behaviour` of the result
    has disagreement and divergence of every pair, from all recorded blocks, and
    `behaviour_missing` says why not where it is not so.

    Cost: about R² · block² / 4 multiplications a block and layer; memory for 2 · blocks + 2
    matrices R × R in float64.
    """
    combinations.check("compare_all", kernel, index)
    reps, device = recordings(reps), usable(device)
    if blocks is not None:
        blocks = whole_number("blocks", blocks, 1)
    refuse_incomparable(reps, kernel)
    asked = Question(kernel, index, kernel == "features" if centre is None else centre, "blocks")
    refuse_few(reps[0], asked)
    chosen, matched_by = _matched_layers(reps, layer)
    sizes = reps[0].block_sizes[: _whole_windows(reps[0], blocks or _enough(reps))]
    weight = block_estimates.weights(sizes, reps[0].samples, centre=asked.centre)
    runs = stored_kernels.runs(sizes, max(1, _ROWS // len(reps)))
    used = [(slice(*run), sizes[run[0]]) for run in runs if weight[run[0]]]
    share = (weight[weight > 0] / weight.sum()).to(device)
    spans = _spans(sizes, weight)
    tokens = reps[0].settings.tokens
    apart = left_out_sequences.groups(reps[0], len(share)) if tokens > 1 else None
    exact = [
        blocks is None and len(reps) <= _FEW and all(is_whole(x, kernel) for x in layers)
        for layers in zip(*chosen, strict=True)
    ]
    if all(exact):
        spans = list(whole_estimates.groups(reps[0].samples))
    scores = torch.zeros(len(reps), len(reps), dtype=torch.float64, device=device)
    averaged = torch.zeros_like(scores)
    left_out = scores.new_zeros(len(apart or spans), *scores.shape)
    n_eff = []
    for layers, whole in zip(zip(*chosen, strict=True), exact, strict=True):
        if whole:
            here, rest, carried = _of_all(layers, asked, reps[0].samples, spans, device)
        else:
            here, rest, carried = _of_blocks(
                layers, asked, used, share, reps[0].samples, device, apart
            )
        there = here.isfinite()
        averaged += there
        scores += here.clamp(0.0 if index == "cka" else -1.0, 1.0).where(there, 0.0)
        left_out += rest.where(there, 0.0)
        n_eff.append(carried)
        for rep, x, alive in zip(reps, layers, there.diagonal().tolist(), strict=True):
            if not alive:
                warnings.warn(constant_layer(rep.name, x.name), ResemblanceWarning, stacklevel=2)
    # each is a mean already, so that one definition has the rest
    means = (x.div_(averaged).cpu().numpy() for x in (scores[None], left_out[:, None]))
    value, error = mean_over_layers(*means)
    carriers = torch.stack(n_eff, 1).cpu().numpy()
    if few := untrusted_of_many(reps, carriers, value, _samples(used)):
        warnings.warn(few, ResemblanceWarning, stacklevel=2)
    return ComparisonMatrix(
        models=tuple(rep.name for rep in reps),
        scores=value,
        stderr=error,
        layers=tuple(tuple(x.name for x in row) for row in chosen),
        kernel=kernel,
        index=index,
        centre=asked.centre,
        samples=_samples(used),
        averaged=averaged.int().cpu().numpy(),
        n_eff=carriers,
        tokens=reps[0].settings.tokens_of_each,
        matched_by=matched_by,
        behaviour=behaviour_of_all(reps),
    )


def _spans(sizes: Sequence[int], weight: Tensor) -> list[tuple[int, int]]:
    """The samples [start, stop) of each block that counts."""
    ends = np.cumsum(sizes).tolist()
    return [(end - n, end) for n, end, w in zip(sizes, ends, weight, strict=True) if w]


def _enough(reps: Sequence[Representation]) -> int:
    """How many blocks to use unless asked: all for a few networks, 2,048 samples for many."""
    sizes = reps[0].block_sizes
    if len(reps) <= _FEW:
        return len(sizes)
    before = np.cumsum([0, *sizes[:-1]])
    return int((before < _SAMPLES).sum())


def _whole_windows(rep: Representation, blocks: int) -> int:
    """So many blocks, or as many more as make windows of sequences whole."""
    return -(-blocks // rep.settings.tokens) * rep.settings.tokens


def refuse_incomparable(reps: Sequence[Representation], kernel: Kernel) -> None:
    """An error if networks are fewer than two, or were not recorded alike on the same samples."""
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


def _matched_layers(
    reps: Sequence[Representation], layer: str | int | None
) -> tuple[list[list[Layer]], MatchedAllBy]:
    """Of each network, the layers to compare with those of the others, one by one."""
    if isinstance(layer, str):
        return [[_named(rep, layer, reps)] for rep in reps], "name"
    if layer is not None:
        return [[rep[layer]] for rep in reps], "position"
    depth = min(len(rep) for rep in reps)
    if depth == max(len(rep) for rep in reps):
        shared = layer_matching.in_all([layer_matching.known(rep) for rep in reps])
        if shared is None:
            return [list(rep) for rep in reps], "position"
        return [[rep[i] for i in at] for rep, at in zip(reps, shared, strict=True)], "name"
    at = np.linspace(0, 1, depth) if depth > 1 else np.ones(1)
    return [[rep[int(i)] for i in np.rint(at * (len(rep) - 1))] for rep in reps], "relative depth"


def _named(rep: Representation, name: str, reps: Sequence[Representation]) -> Layer:
    """The layer of a name, or of the name that it has without wrappers in any of the networks."""
    if name in rep.layer_names:
        return rep[name]
    bare = {name, *(x.bare_name for other in reps for x in other if x.name == name)} - {""}
    found = [x for x in rep if x.bare_name in bare]
    return found[-1] if found else rep[name]  # which says what there is


def _of_all(
    layers: Sequence[Layer],
    asked: Question,
    samples: int,
    spans: whole_estimates.Spans,
    device: str | torch.device,
) -> tuple[Tensor, Tensor, Tensor]:  # (R, R), (k, R, R), (R,)
    """Scores from kernels of all samples, without each span of them, and n_eff."""
    pairing = whole_estimates.Pairing(layers, layers, asked, samples, spans, device)
    found = whole_estimates.scores(pairing, seed=None)
    assert found.replicates is not None
    assert found.n_eff is not None
    parts = (found.scores, found.replicates, found.n_eff[0])
    value, rest, n_eff = (torch.from_numpy(x).to(device) for x in parts)
    return value, rest, n_eff


def _of_blocks(
    layers: Sequence[Layer],
    asked: Question,
    used: Sequence[tuple[slice, int]],
    share: Tensor,  # (k,) each block's part in the whole
    samples: int,
    device: str | torch.device,
    apart: Sequence[Group] | None = None,  # of tokens: sequences to be left out together
) -> tuple[Tensor, Tensor, Tensor]:  # (R, R), (k, R, R), (R,)
    """Scores from blocks, without each of them (or of groups of sequences), and n_eff."""
    tokens = 1 if apart is None else apart[0].blocks.stop
    numerators, visible, n_eff = _numerators(layers, asked, used, samples, device, tokens=tokens)
    numerators.mul_(share[:, None, None])
    visible.mul_(share[:, None])
    whole, seen = numerators.sum(0), visible.sum(0)
    if apart is not None:
        each = (numerators, visible)
        unit = float(_samples(used))
        rest = [_without(g, layers, asked, each, share, samples, device, unit) for g in apart]
        return _normalised(whole, seen), torch.stack(rest), n_eff
    for numerator, least in zip(numerators, visible, strict=True):
        numerator.copy_(_normalised(whole - numerator, seen - least))
    return _normalised(whole, seen), numerators, n_eff


def _without(
    group: Group,
    layers: Sequence[Layer],
    asked: Question,
    each: tuple[Tensor, Tensor],  # numerators and their round-off, block by block
    share: Tensor,
    samples: int,
    device: str | torch.device,
    unit: float,
) -> Tensor:  # (R, R)
    """Scores with a group of sequences left out, of which a window's blocks keep the rest."""
    numerators, visible = (x.sum(0) - x[group.blocks].sum(0) for x in each)
    m, size = len(group.rest), group.size
    if m:
        rest = [left_out_sequences.only_layer(layer, group) for layer in layers]
        used = [(slice(0, group.blocks.stop - group.blocks.start), m)]
        less, unseen, _ = _numerators(rest, asked, used, samples, device, unit=unit)
        lighter = share[group.blocks, None] * (m * (m - 1)) / (size * (size - 1))
        numerators += (less * lighter[..., None]).sum(0)
        visible += (unseen * lighter).sum(0)
    return _normalised(numerators, visible)


def _numerators(
    layers: Sequence[Layer],
    asked: Question,
    used: Sequence[tuple[slice, int]],  # blocks to be read together, and the samples of each
    samples: int,
    device: str | torch.device,
    *,
    tokens: int = 1,  # blocks of one window
    unit: float | None = None,  # that traces are scaled to
) -> tuple[Tensor, Tensor, Tensor]:  # (k, R, R), (k, R), (R,) float64
    """⟨K1, K2⟩ of every pair of layers, block by block, the round-off of ⟨K1, K1⟩, and n_eff."""
    out, visible, carried = [], [], Carried()
    read, unit, loose = stored_kernels.read, unit or float(_samples(used)), asked.centre
    for which, n in used:
        shape = (which.stop - which.start, len(layers), -1)
        triangle, diagonal = read(layers, asked.kernel, which, n, device, unit, loose=loose)
        least = torch.zeros(len(diagonal), dtype=torch.float64)
        if loose or asked.index != "cka":  # else the diagonal alone lies far above round-off
            least = stored_kernels.round_off(layers, asked.kernel, which, n, unit)
        visible.append(least.view(shape[:2]).to(device))
        if asked.centre:
            diagonal = level_in_place(triangle, diagonal)
        # Of the nine sums three remain, as levelled rows sum to zero.
        c = factors(asked.index, n, samples, centre=asked.centre)
        d = diagonal.double().view(shape)
        total = d.sum(2, keepdim=True)
        carried.add([i // tokens for i in range(which.start, which.stop)], d)
        products = torch.stack([symmetric_product(x) for x in triangle.view(shape)]).double()
        products.mul_(2 * c[0]).baddbmm_(d, d.mT, alpha=float(c[2]))
        out.append(products.baddbmm_(total, total.mT, alpha=float(c[6])))
    return torch.cat(out), torch.cat(visible), carried.n_eff()


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
