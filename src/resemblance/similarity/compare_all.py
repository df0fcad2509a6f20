"""Compare many networks recorded on the same samples (`compare_all`).

A block of a kernel is a long vector, and CKA is a bilinear form in two of them: an inner product of
the entries plus inner products of row sums and diagonals. So all pairs of R networks cost one R × t
by t × R product per block and layer, and each Gram matrix is read once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._ops.devices import check_device
from .._utils.validation import check_integer
from ..errors import DataError, MismatchError, warn
from ..representation.layer import Layer
from ..representation.notes import make_note
from ..representation.representation import (
    Representation,
    RepresentationLike,
    as_representations,
    few_samples_note,
)
from . import block_estimator, jackknife
from .agreement_matrix import behaviour_matrix
from .compare import check_enough_samples
from .comparison import mean_over_layers
from .comparison_matrix import ComparisonMatrix, MatchedAllBy
from .jackknife import EffectiveSamples, SequenceGroup, unreliable_networks_note
from .kernels import CompareConfig, Kernel, check_combination
from .pair_statistics import (
    WEIGHTS_OF_ROWS,
    RowSums,
    cross_products,
    norm_products,
    sum_weights,
    u_centre_in_place,
)
from .pairing import (
    blocks_obstacle,
    check_recorded,
    check_same_samples,
    layers_in_all,
)
from .stored_kernels import equal_size_runs, has_full_gram, read_blocks, round_off_level

_KERNELS_AT_ONCE = 256  # kernels of blocks to work on at a time
_FEW_NETWORKS = 32  # that are compared on all samples
_ENOUGH_SAMPLES = 2048  # for more networks than that


def compare_all(
    reps: Iterable[RepresentationLike],
    *,
    kernel: Kernel = "features",
    index: Literal["cka", "cka-debiased"] = "cka",
    centre: bool | None = None,
    layer: str | int | None = None,
    blocks: int | None = None,
    device: str | torch.device = "cpu",
) -> ComparisonMatrix:
    """All pairs of networks recorded on the same samples.

    A score is the mean over matched layers as `KernelComparison.mean` has it: where `compare`
    matches the same ones, that of `compare(estimator="blocks")` on the same samples, to 1e-6 (in
    float32 on a CPU, on kernels whose rows are levelled first, which keeps centring accurate; in
    float64 on a GPU, which may be set to round float32 products). A layer that is constant on these
    data is left out of the means, and a warning names it. Standard error: the jackknife of the
    mean, over blocks or groups of samples, which says how far it would move with other samples of
    the same source.

    What the networks predict is compared where they have as many classes: `behaviour` of the result
    has disagreement and divergence of every pair, from all recorded blocks, and
    `behaviour_missing` says why not where it is not so.

    Cost: about R² · block² / 4 multiplications a block and layer; memory for 2 · blocks + 2
    matrices R × R in float64.

    Args:
        reps: two or more, or paths, recorded on the same samples with the same settings.
        kernel: which kernels to compare, as in `compare`.
        index: `cka` or `cka-debiased`.
        centre: subtract the mean over samples; None does for features alone.
        layer: a name or position to compare at; names are seen through wrappers. None averages
            over matched layers: networks of equal depth by name, as in `compare`, where at least
            half of their layers have namesakes in all of them, else by position; others by relative
            depth, at as many depths as the shallowest has layers. `matched_by` says which.
        blocks: how many blocks of samples to use; more is more exact and costs in proportion. None
            takes all for up to 32 networks (of small data, the kernel of all samples, where it was
            kept), and beyond that as many as hold 2,048 samples.
        device: where to compute, such as `"cuda"`; on the CPU by default.

    Returns:
        The score of every pair with its standard error, and how networks cluster.

    Raises:
        DataError: if there are fewer than two recordings, or an option is out of its range.
        MismatchError: if samples, settings or layers do not go together.

    Example:
        >>> import torch, resemblance as rs
        >>> x = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
        >>> reps = [rs.record_arrays(y, data_id="x") for y in (x, x.tanh(), x**2)]
        >>> rs.compare_all(reps).scores.shape
        (3, 3)
    """
    check_combination("compare_all", kernel, index)
    reps, device = as_representations(reps), check_device(device)
    if blocks is not None:
        blocks = check_integer("blocks", blocks, 1)
    check_comparable(reps, kernel)
    asked = CompareConfig(
        kernel, index, kernel == "features" if centre is None else centre, "blocks"
    )
    check_enough_samples(reps[0], asked)
    chosen, matched_by = _matched_layers(reps, layer)
    of_layers = list(zip(*chosen, strict=True))
    part = _read_blocks_of(reps, blocks, asked, device)
    few = blocks is None and len(reps) <= _FEW_NETWORKS
    exact = [few and all(has_full_gram(x, kernel) for x in layers) for layers in of_layers]
    spans = block_estimator.sample_groups(reps[0].samples) if all(exact) else part.spans
    scores = torch.zeros(len(reps), len(reps), dtype=torch.float64, device=device)
    averaged = torch.zeros_like(scores)
    left_out = scores.new_zeros(len(part.groups or spans), *scores.shape)
    n_eff = []
    for layers, whole in zip(of_layers, exact, strict=True):
        if whole:
            here, rest, carried = _scores_from_full_gram(
                layers, asked, reps[0].samples, spans, device
            )
        else:
            here, rest, carried = _scores_from_blocks(layers, asked, part, device)
        there = here.isfinite()
        averaged += there
        scores += here.clamp(0.0 if index == "cka" else -1.0, 1.0).where(there, 0.0)
        left_out += rest.where(there, 0.0)
        n_eff.append(carried)
        for rep, x, alive in zip(reps, layers, there.diagonal().tolist(), strict=True):
            if not alive:
                warn(make_note("constant-layer", layer=x.name, model=rep.name))
    # each is a mean already, so that one definition has the rest
    means = (x.div_(averaged).cpu().numpy() for x in (scores[None], left_out[:, None]))
    value, error = mean_over_layers(*means)
    carriers = torch.stack(n_eff, 1).cpu().numpy()
    held = _sample_count(part.used)
    for alarm in (
        few_samples_note(held, reps[0].settings),
        unreliable_networks_note(reps, carriers, value, held),
    ):
        if alarm:
            warn(alarm)
    return ComparisonMatrix(
        models=tuple(rep.name for rep in reps),
        scores=value,
        stderr=error,
        layers=tuple(tuple(x.name for x in row) for row in chosen),
        kernel=kernel,
        index=index,
        centre=asked.centre,
        samples=held,
        averaged=averaged.int().cpu().numpy(),
        n_eff=carriers,
        tokens=reps[0].settings.tokens_of_each,
        matched_by=matched_by,
        behaviour=behaviour_matrix(reps),
    )


class _BlocksRead(NamedTuple):
    """The blocks of samples that are read, and what is left out in turn."""

    used: list[tuple[slice, int]]  # blocks to be read together, and the samples of each
    share: Tensor  # (k,) each block's part in the whole
    spans: block_estimator.Spans  # samples of each block
    groups: list[SequenceGroup] | None  # of tokens: sequences to be left out together
    samples: int  # in all


def _read_blocks_of(
    reps: Sequence[Representation],
    blocks: int | None,
    asked: CompareConfig,
    device: str | torch.device,
) -> _BlocksRead:
    first = reps[0]
    sizes = first.block_sizes[: _blocks_to_use(reps, blocks)]
    weight = block_estimator.block_weights(sizes, first.samples, centre=asked.centre)
    runs = equal_size_runs(sizes, max(1, _KERNELS_AT_ONCE // len(reps)))
    used = [(slice(*run), sizes[run[0]]) for run in runs if weight[run[0]]]
    share = (weight[weight > 0] / weight.sum()).to(device)
    groups = jackknife.sequence_groups(first, len(share)) if first.settings.tokens > 1 else None
    spans = block_estimator.block_spans(sizes, weight)
    return _BlocksRead(used, share, spans, groups, first.samples)


def _blocks_to_use(reps: Sequence[Representation], blocks: int | None) -> int:
    """How many blocks to use: as many as asked for, or more to make windows of sequences whole.

    By default all for a few networks, and for many those of 2,048 samples.
    """
    sizes, tokens = reps[0].block_sizes, reps[0].settings.tokens
    if blocks is None:
        most = _ENOUGH_SAMPLES if len(reps) > _FEW_NETWORKS else np.inf
        blocks = int((np.cumsum([0, *sizes[:-1]]) < most).sum())
    return -(-blocks // tokens) * tokens


def check_comparable(reps: Sequence[Representation], kernel: Kernel) -> None:
    """An error if networks are fewer than two, or were not recorded alike on the same samples."""
    if len(reps) < 2:
        raise DataError(f"expected at least two networks to compare, found {len(reps)}")
    first = reps[0]
    for other in reps[1:]:
        check_recorded(first, other, kernel)
        check_same_samples(first, other, "compare two at a time with `unpaired=True`")
        if obstacle := blocks_obstacle(first, other):
            raise MismatchError(
                f"{first.name!r} and {other.name!r} cannot be compared: {obstacle}; record all "
                "networks on the same samples with the same seed and block size"
            )


def _matched_layers(
    reps: Sequence[Representation], layer: str | int | None
) -> tuple[list[list[Layer]], MatchedAllBy]:
    """Of each network, the layers to compare with those of the others, one by one."""
    if isinstance(layer, str):
        return [[_layer_named(rep, layer, reps)] for rep in reps], "name"
    if layer is not None:
        return [[rep[layer]] for rep in reps], "position"
    depth = min(len(rep) for rep in reps)
    if depth == max(len(rep) for rep in reps) and (found := layers_in_all(reps)) is not None:
        return found
    at = np.linspace(0, 1, depth) if depth > 1 else np.ones(1)
    return [[rep[int(i)] for i in np.rint(at * (len(rep) - 1))] for rep in reps], "relative depth"


def _layer_named(rep: Representation, name: str, reps: Sequence[Representation]) -> Layer:
    """The layer of a name, or of the name that it has without wrappers in any of the networks."""
    if name in rep.layer_names:
        return rep[name]
    bare = {name, *(x.bare_name for other in reps for x in other if x.name == name)} - {""}
    found = [x for x in rep if x.bare_name in bare]
    return found[-1] if found else rep[name]  # which says what there is


def _scores_from_full_gram(
    layers: Sequence[Layer],
    asked: CompareConfig,
    samples: int,
    spans: block_estimator.Spans,
    device: str | torch.device,
) -> tuple[Tensor, Tensor, Tensor]:  # (R, R), (k, R, R), (R,)
    """Scores from kernels of all samples, without each span of them, and n_eff."""
    pairing = block_estimator.LayerPairing(layers, layers, asked, samples, spans, device)
    found = block_estimator.full_gram_scores(pairing)
    assert found.replicates is not None
    assert found.n_eff is not None
    parts = (found.scores, found.replicates, found.n_eff[0])
    value, rest, n_eff = (torch.from_numpy(x).to(device) for x in parts)
    return value, rest, n_eff


def _scores_from_blocks(
    layers: Sequence[Layer],
    asked: CompareConfig,
    part: _BlocksRead,
    device: str | torch.device,
) -> tuple[Tensor, Tensor, Tensor]:  # (R, R), (k, R, R), (R,)
    """Scores from blocks, without each of them (or of groups of sequences), and n_eff."""
    tokens = 1 if part.groups is None else part.groups[0].blocks.stop
    numerators, visible, n_eff = _numerators(
        layers, asked, part.used, part.samples, device, tokens=tokens
    )
    numerators.mul_(part.share[:, None, None])
    visible.mul_(part.share[:, None])
    whole, seen = numerators.sum(0), visible.sum(0)
    if part.groups is not None:
        each = (numerators, visible)
        rest = [_scores_without_group(g, layers, asked, each, part, device) for g in part.groups]
        return _normalised_scores(whole, seen), torch.stack(rest), n_eff
    for numerator, least in zip(numerators, visible, strict=True):
        numerator.copy_(_normalised_scores(whole - numerator, seen - least))
    return _normalised_scores(whole, seen), numerators, n_eff


def _scores_without_group(
    group: SequenceGroup,
    layers: Sequence[Layer],
    asked: CompareConfig,
    each: tuple[Tensor, Tensor],  # numerators and their round-off, block by block
    part: _BlocksRead,
    device: str | torch.device,
) -> Tensor:  # (R, R)
    """Scores with a group of sequences left out, of which a window's blocks keep the rest."""
    numerators, visible = (x.sum(0) - x[group.blocks].sum(0) for x in each)
    m, size = len(group.rest), group.size
    if m:
        rest = [jackknife.layer_without_group(layer, group) for layer in layers]
        used = [(slice(0, group.blocks.stop - group.blocks.start), m)]
        unit = float(_sample_count(part.used))
        less, unseen, _ = _numerators(rest, asked, used, part.samples, device, unit=unit)
        lighter = part.share[group.blocks, None] * (m * (m - 1)) / (size * (size - 1))
        numerators += (less * lighter[..., None]).sum(0)
        visible += (unseen * lighter).sum(0)
    return _normalised_scores(numerators, visible)


def _numerators(
    layers: Sequence[Layer],
    asked: CompareConfig,
    used: Sequence[tuple[slice, int]],
    samples: int,
    device: str | torch.device,
    *,
    tokens: int = 1,  # blocks of one window
    unit: float | None = None,  # that traces are scaled to
) -> tuple[Tensor, Tensor, Tensor]:  # (k, R, R), (k, R), (R,) float64
    """⟨K1, K2⟩ of every pair of layers, block by block, the round-off of ⟨K1, K1⟩, and n_eff."""
    out, visible, carried = [], [], EffectiveSamples()
    read, unit, loose = read_blocks, unit or float(_sample_count(used)), asked.centre
    for which, n in used:
        shape = (which.stop - which.start, len(layers), -1)
        triangle, diagonal = read(layers, asked.kernel, which, n, device, unit, loose=loose)
        least = torch.zeros(len(diagonal), dtype=torch.float64)
        if loose or asked.index != "cka":  # else the diagonal alone lies far above round-off
            least = round_off_level(layers, asked.kernel, which, n, unit)
        visible.append(least.view(shape[:2]).to(device))
        if asked.centre:
            diagonal = u_centre_in_place(triangle, diagonal)
        weights = sum_weights(asked.index, n, samples, centre=asked.centre)
        weights[WEIGHTS_OF_ROWS] = 0  # levelled rows sum to zero
        d = diagonal.double().view(shape)
        carried.add([i // tokens for i in range(which.start, which.stop)], d)
        products = torch.stack([symmetric_product(x) for x in triangle.view(shape)]).double()
        sums = RowSums(d, torch.zeros_like(d))
        out.append(cross_products(weights, products.mul_(2), sums, sums))
    return torch.cat(out), torch.cat(visible), carried.n_eff()


def _sample_count(used: Sequence[tuple[slice, int]]) -> int:
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


def _normalised_scores(numerators: Tensor, visible: Tensor) -> Tensor:  # (R, R), (R,) -> (R, R)
    own = numerators.diagonal()
    own = own * (own > visible)
    return numerators / norm_products(own, own)
