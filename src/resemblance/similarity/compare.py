"""Compare two networks layer by layer, with standard errors and a chance level (`compare`).

Chooses the estimator; `pairing` refuses recordings that cannot be compared. The estimators are in
`block_estimator`, `function_estimator`, `ratio_estimator` and `bucket_estimator`; the result is a
`Comparison`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Literal, overload

import numpy as np
import torch

from .._ops.devices import check_device
from .._utils.validation import check_integer
from ..errors import DataError, MismatchError, warn
from ..representation.notes import ALARMS, Note, make_note
from ..representation.representation import (
    Representation,
    RepresentationLike,
    as_representation,
    few_samples_note,
)
from . import (
    block_estimator,
    bucket_estimator,
    function_estimator,
    jackknife,
    ratio_estimator,
)
from .agreement import (
    AnyBehaviour,
    Behaviour,
    behaviour,
    outputs_obstacle,
    prediction_behaviour,
    predictions_obstacle,
)
from .block_estimator import LayerPairing
from .comparison import Comparison, FullComparison, KernelComparison
from .drift import coordinates
from .indices.registry import get_index, is_registered
from .jackknife import Estimate, small_blocks_note, unreliable_note
from .kernels import (
    KERNEL_TABLE,
    CompareConfig,
    Estimator,
    Kernel,
    check_combination,
    check_names,
)
from .pairing import (
    MSG_OTHER_ORDER,
    Matching,
    blocks_obstacle,
    buckets_obstacle,
    check_recorded,
    check_same_samples,
    layer_keys,
    match_layers,
    recorded_without,
    same_samples,
    unpaired_note,
)
from .permutations import FEWEST_PERMUTATIONS, with_permutations
from .same_function import EXACT, SameFunction, recognise
from .stored_kernels import has_full_gram

_MSG_WHOLE_ONLY = (
    "index {0!r} needs the full Gram matrix of the same samples, which a recording contains for up "
    "to 1,024 samples (`unit='sample'`); found {1:,} and {2:,} samples. Record both on at most "
    "1,024"
)
_MSG_REGISTER_BLOCKS = (
    ", or register {0!r} with `blocks=True` if its mean over blocks is a valid estimate"
)
_MSG_NO_PERMUTATIONS = (
    "`permutations` needs the full Gram matrix of the same samples at every layer, from which {1} "
    "is computed for up to {0:,} samples (`unit='sample'`); found {2:,} samples and the estimator "
    "{3!r}. Record both on at most {0:,}, or omit `permutations`"
)
_MSG_NOTHING_TO_PERMUTE = (
    "{0} does not pair samples, so permuting them changes nothing; omit `permutations`"
)
_MIN_DEBIASED_SAMPLES = 4  # samples
_MSG_NO_RATIO = (
    "`estimator='ratio'` is not available for tokens, whose norms do not identify their sequence; "
    "use `estimator='blocks'`"
)
_MSG_NO_BLOCKS = (
    "scores cannot be judged: {}. Record both networks on the same samples, with the same seed and "
    "block size"
)


@overload
def compare(
    a: RepresentationLike,
    b: RepresentationLike,
    *,
    kernel: None = None,
    index: str = "cka",
    centre: bool | None = None,
    estimator: Estimator | Literal["auto"] = "auto",
    device: str | torch.device = "cpu",
    unpaired: bool = False,
    permutations: int | None = None,
) -> FullComparison: ...


@overload
def compare(
    a: RepresentationLike,
    b: RepresentationLike,
    *,
    kernel: Kernel,
    index: str = "cka",
    centre: bool | None = None,
    estimator: Estimator | Literal["auto"] = "auto",
    device: str | torch.device = "cpu",
    unpaired: bool = False,
    permutations: int | None = None,
) -> KernelComparison: ...


def compare(
    a: RepresentationLike,
    b: RepresentationLike,
    *,
    kernel: Kernel | None = None,
    index: str = "cka",
    centre: bool | None = None,
    estimator: Estimator | Literal["auto"] = "auto",
    device: str | torch.device = "cpu",
    unpaired: bool = False,
    permutations: int | None = None,
) -> Comparison:
    """How similar two networks are, layer by layer, with standard errors and a chance level.

    By default, features and gradients are compared side by side, with the predictions of the
    networks and the drift of copies. A layer has the same counterpart in both: where layers are
    matched by similarity, the similarity of features decides. Where gradients were not recorded, or
    cannot be compared, the result has features alone and a note.

    Args:
        a: a recording, or the path of its file. Its layers are the rows of the result.
        b: a recording of the same samples with the same seed and settings, or its path. Its layers
            are the columns.
        kernel: compare this kernel alone: `"features"`, `"gradients"`, `"product"` (the paper's),
            `"sum"`, `"elementwise"` or `"transport"`. None compares features and gradients.
        index: `"cka"`, `"cka-debiased"` (chance is zero, whatever the number of samples), `"nbs"`
            (on centred kernels the Procrustes similarity), `"spectral"` (needs no pairing of
            samples), `"rsa"`, `"rsa-spearman"`, `"rsa-kendall"`, `"distance-correlation"`, or one
            from `register_index`. With up to 1,024 samples also `"mutual-knn"`, `"jaccard"` and
            `"cknna"` (10 nearest neighbours), `"procrustes"` (a metric), `"cca"`, `"svcca"` and
            `"linear-regression"` (of rows from columns; swap the networks for the other way).
        centre: whether to subtract the mean over samples first. None does so for features, where
            the mean otherwise dominates, and not for other kernels, as in the paper; for indices
            of neighbours never, for Procrustes, CCA and regression always, as their authors do.
        estimator: `"blocks"` (exact kernels of shared samples, of all of them up to 1,024:
            unbiased, with a chance level), `"ratio"` (blocks and the norms of all samples, for CKA
            of uncentred kernels), `"buckets"` (sketches: any two data sets) or `"paper"`
            (Algorithm 1 as published). `"auto"` takes blocks if both networks saw the same
            samples, else buckets. Beyond 1,024 samples it takes `ratio` where that is supported,
            and buckets where a few samples dominate a kernel that they can sketch, and a note says
            so. For `nbs` it takes the full Gram matrix of up to 512 samples, else buckets, whose
            bias is smaller, except for the product, which they do not sketch.
        device: device to compute on, such as `"cuda"`. Default: the CPU.
        unpaired: allow recordings of different samples, also of different numbers of them. They are
            paired by position, so that scores say little about the networks, and the result says
            so. `spectral` pairs no samples and needs no permission.
        permutations: number of random orders of samples, such as 200, that chance levels and
            p-values come from, for any index of up to 1,024 samples, also corrected for taking the
            best pair of layers. It takes as many times longer. None: indices that are sums over
            pairs (CKA, RSA, distance correlation) have both from moments, others have none.

    Returns:
        A `Comparison`. Its `["features"]` and `["gradients"]` have scores and standard errors,
        which `KernelComparison` explains; with `kernel`, it is that `KernelComparison` itself. A
        warning says where standard errors cannot be trusted. Bias and cost are described in the
        modules of the estimators.

    Raises:
        MismatchError: if the recordings were made on different samples or with different settings,
            or lack what the kernel needs.
        DataError: if an option is not one of those above, or they do not go together.

    Example:
        >>> import torch, resemblance as rs
        >>> x = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
        >>> rep = rs.record_arrays(x, data_id="x")
        >>> float(rs.compare(rep, rep)["features"].scores[0, 0].round(6))
        1.0
    """
    a, b, device = as_representation(a), as_representation(b), check_device(device)
    check_names(kernel or "features", index, estimator)
    if permutations is not None:
        permutations = check_integer("permutations", permutations, FEWEST_PERMUTATIONS)
    predicted = behaviour(a, b) if outputs_obstacle(a, b) is None else None
    options = (index, centre, estimator, device, unpaired, permutations, predicted)
    found: Comparison
    if kernel is None:
        found = _compare_both(a, b, *options)
    else:
        found = compare_kernel(a, b, kernel, *options)
    for note in found.notes:
        if note.code in ALARMS:
            warn(note)
    return found


def same_function(a: Representation, b: Representation) -> SameFunction | None:
    """What became of each layer of a copy that predicts the same; None if it does not.

    Args:
        a: the recording of the base.
        b: the recording of the copy, on the same samples.
    """
    if predictions_obstacle(a, b) is not None:
        return None
    predicted = prediction_behaviour(a, b)
    return _compare_both(a, b, "cka", None, "auto", "cpu", False, None, predicted).same_function


def _compare_both(a: Representation, b: Representation, *options: Any) -> FullComparison:
    """Features, gradients where they can be compared, and the drift where that is defined."""
    features, gradients, drift = compare_kernel(a, b, "features", *options), None, None
    matching = features.matching
    without = recorded_without((a, b), "gradients")
    try:
        if not without:
            gradients = compare_kernel(a, b, "gradients", *options, matching=matching)
    except MismatchError as error:
        without = str(error)
    with contextlib.suppress(MismatchError):
        drift = coordinates(a, b)
    parts = [part for part in (features, gradients) if part is not None]
    kernels: dict[Note, list[Kernel]] = {}  # that a note is about
    for part in parts:
        for note in part.notes:
            kernels.setdefault(note, []).append(part.kernel)
    notes = [
        note if len(of) == len(parts) else note.of_kernel(of[0]) for note, of in kernels.items()
    ]
    if without:
        notes.append(make_note("no-gradients", reason=without))
    elif drift is not None and drift.shared:
        notes += drift.notes
    if features.behaviour is None:
        reason = recorded_without((a, b), "outputs") or outputs_obstacle(a, b)
        notes.append(make_note("no-predictions", reason=reason))
    same = None
    if features.index == "cka" and features.centre and features.estimator in EXACT:
        once = (*options[:-2], None, options[-1])  # without permutations
        products = partial(compare_kernel, a, b, "elementwise", *once, matching=matching)
        predicted = features.behaviour if isinstance(features.behaviour, Behaviour) else None
        same = recognise(a, b, features, gradients, drift, predicted, products)
    return FullComparison(features, gradients, drift, tuple(notes), same)


def compare_kernel(
    a: Representation,
    b: Representation,
    kernel: Kernel,
    index: str,
    centre: bool | None,
    estimator: Estimator | Literal["auto"],
    device: str | torch.device,
    unpaired: bool,
    permutations: int | None,
    predicted: AnyBehaviour | None,
    *,
    matching: Matching | None = None,
) -> KernelComparison:
    """The comparison by one kernel, without warnings; layers matched as given, or by its scores."""
    check_recorded(a, b, kernel)
    if not unpaired and get_index(index).paired:
        check_same_samples(a, b, "pass `unpaired=True`")
    asked = resolve_config(a, b, kernel, index, centre, estimator)
    check_enough_samples(a, asked)
    if permutations:
        _check_permutable(a, b, asked)
    found = _estimate_scores(a, b, asked, device)
    if transform := get_index(index).transform:
        found = found.transformed(transform)
    if permutations:
        found = with_permutations(found, _full_gram_pairing(a, b, asked, device), permutations)
    automatic = estimator == "auto"
    return build_comparison(a, b, asked, found, predicted, matching, automatic=automatic)


def _check_permutable(a: Representation, b: Representation, asked: CompareConfig) -> None:
    """An error unless the kernels of all samples are there to be permuted, and pairing matters."""
    index = get_index(asked.index)
    if not index.paired:
        raise DataError(_MSG_NOTHING_TO_PERMUTE.format(asked.index))
    whole = all(x.all() for x in full_gram_layers(a, b, asked))
    if asked.estimator != "blocks" or not whole:
        most = index.whole_samples or jackknife.FULL_GRAM_SAMPLES
        found = (most, asked.index, a.samples, asked.estimator)
        raise MismatchError(_MSG_NO_PERMUTATIONS.format(*found))


def _full_gram_pairing(
    a: Representation, b: Representation, asked: CompareConfig, device: str | torch.device
) -> LayerPairing:
    spans = block_estimator.sample_groups(a.samples)
    return LayerPairing(a.layers, b.layers, asked, a.samples, spans, device)


def compare_population(a: Representation, b: Representation, kernel: Kernel) -> KernelComparison:
    """Debiased CKA of the population that the samples were drawn from, with its standard error.

    The score is `compare`'s with `index="cka-debiased"`: pairs of a sample with itself, which make
    unlike networks look alike where samples are few, do not enter it. `stderr` and `df` are about
    the population at any number of samples, where `compare` describes the samples recorded beyond
    1,024 of them. Buckets are never used: their standard error does not cover their bias.

    Args:
        a: the recording of one network.
        b: the recording of the other, on the same samples.
        kernel: the kernel to compare.

    Returns:
        The comparison of all layers. What `compare` would warn of is in its notes.

    Raises:
        MismatchError: if the blocks of the two recordings cannot be compared.
    """
    check_recorded(a, b, kernel)
    if obstacle := blocks_obstacle(a, b):
        raise MismatchError(_MSG_NO_BLOCKS.format(obstacle))
    asked = resolve_config(a, b, kernel, "cka-debiased", None, "blocks")
    check_enough_samples(a, asked)
    if ratio_supported((a, b), replace(asked, index="cka")):
        asked = replace(asked, estimator="ratio")
    found = _estimate_scores(a, b, asked, "cpu", population=True)
    return build_comparison(a, b, asked, found, None, automatic=False)


def build_comparison(
    a: Representation,
    b: Representation,
    asked: CompareConfig,
    found: Estimate,
    predicted: AnyBehaviour | None,
    matching: Matching | None = None,
    *,
    automatic: bool,  # whether the estimator was chosen here
) -> KernelComparison:
    """An estimate with notes on what a reader should know of it."""
    kernel, index = KERNEL_TABLE[asked.kernel], get_index(asked.index)
    paired, blocks = same_samples(a, b), asked.estimator in ("blocks", "ratio")
    chosen = automatic and blocks_obstacle(a, b) is None
    whole = asked.estimator == "blocks" and all(x.all() for x in full_gram_layers(a, b, asked))
    samples = (sum(a.block_sizes), sum(b.block_sizes)) if blocks else (a.samples, b.samples)
    sketched = asked.estimator == "buckets"
    reordered = automatic and blocks_obstacle(a, b) == MSG_OTHER_ORDER
    mean_of_blocks = not whole and index.score is not None and index.from_blocks is None
    without_errors = make_note("no-errors", index=index.name, reason=index.without_errors)
    constant = [
        make_note("constant-layer", layer=name, model=rep.name)
        for rep, lives in zip((a, b), found.alive, strict=True)
        for name, live in zip(rep.layer_names, lives, strict=True)
        if not live
    ]
    notes = [
        kernel.bucket_note if sketched else None,
        None if whole else index.note,
        make_note("mean-of-blocks", index=index.name) if mean_of_blocks else None,
        without_errors if whole and not index.jackknife else None,
        None if index.symmetric else make_note("not-symmetric", index=index.name),
        kernel.note,
        make_note("tokens-in-buckets") if a.settings.tokens > 1 and not blocks else None,
        make_note("from-buckets") if chosen and sketched and index.pair_sums else None,
        make_note("by-keys") if reordered else None,
        None if paired or not index.paired else unpaired_note(a, b),
        *dict.fromkeys(constant),  # once, also when a network is compared with itself
        few_samples_note(min(samples), a.settings),
        unreliable_note(a, found),
        small_blocks_note(a, asked),
    ]
    matching = matching or match_layers(layer_keys(a), layer_keys(b), found.scores)
    out = KernelComparison(
        models=(a.name, b.name),
        rows=tuple(a.layer_names),
        columns=tuple(b.layer_names),
        scores=found.scores,
        stderr=found.stderr,
        chance=found.chance,
        chance_high=found.chance_high,
        **asdict(asked),
        paired=paired,
        samples=samples,
        notes=tuple(filter(None, notes)),
        df=found.df,
        p_value=found.p_value,
        permuted_best=found.permuted_best,
        n_eff=None if found.n_eff is None else (found.n_eff[0], found.n_eff[1]),
        effective_blocks=found.effective_blocks,
        tokens=a.settings.tokens_of_each,
        behaviour=predicted,
        matched_by=matching.by,
        matched=matching.columns,
    )
    if found.replicates is None:
        return out
    return replace(out, replicates=out.of_counterparts(found.replicates))


def resolve_config(
    a: Representation,
    b: Representation,
    kernel: Kernel,
    index: str,
    centre: bool | None,
    estimator: Estimator | Literal["auto"],
) -> CompareConfig:
    """The question with its defaults, or an error that says why it cannot be answered."""
    paired = get_index(index).paired
    no_block = blocks_obstacle(a, b, paired=paired)
    no_bucket = buckets_obstacle(a, b, paired=paired)
    if centre is None:
        centre = get_index(index).centre
    if centre is None:
        centre = kernel == "features" and estimator != "paper"
    if estimator == "auto":
        estimator = _best_estimator(
            a, b, CompareConfig(kernel, index, centre, "blocks"), no_block, no_bucket
        )
    check_combination("compare", kernel, index, estimator, centre, obstacle=no_block)
    if estimator in ("blocks", "ratio") and no_block:
        raise MismatchError(
            f"blocks cannot be compared: {no_block}; record both with the same data, seed and "
            "block size, or use `estimator='buckets'`"
        )
    if estimator == "ratio" and a.settings.tokens > 1:
        raise MismatchError(_MSG_NO_RATIO)
    if estimator in ("buckets", "paper") and no_bucket:
        raise MismatchError(
            f"buckets cannot be compared: {no_bucket}; record both with the same sketch"
            + (f" (nor can blocks: {no_block})" if no_block else ", or use `estimator='blocks'`")
        )
    asked = CompareConfig(kernel, index, centre, estimator)
    if not get_index(index).blocks and not all(x.all() for x in full_gram_layers(a, b, asked)):
        more = _MSG_REGISTER_BLOCKS if is_registered(index) else ""
        raise MismatchError((_MSG_WHOLE_ONLY + more).format(index, a.samples, b.samples))
    return asked


def _best_estimator(
    a: Representation,
    b: Representation,
    asked: CompareConfig,
    no_block: str | None,
    no_bucket: str | None,
) -> Estimator:
    """What `auto` takes."""
    if no_block:
        return "buckets"
    kernel = KERNEL_TABLE[asked.kernel]
    if get_index(asked.index).prefers_buckets:
        # there are more buckets than block rows
        more = not no_bucket and a.settings.buckets > a.settings.block
        held = kernel.buckets and not kernel.bucket_note and (kernel.linear or not asked.centre)
        exact = all(x.all() for x in full_gram_layers(a, b, asked))
        return "buckets" if more and held and not exact else "blocks"
    if not ratio_supported((a, b), asked):
        return "blocks"
    sketched = kernel.linear and not no_bucket
    heavy = sketched and all(
        ratio_estimator.few_samples_dominate(rep, asked.kernel) for rep in (a, b)
    )
    return "buckets" if heavy else "ratio"


def ratio_supported(reps: Sequence[Representation], asked: CompareConfig) -> bool:
    """Whether `ratio` is offered, and worth it: beyond what the full kernel is kept of."""
    if reps[0].settings.tokens > 1 or reps[0].samples <= jackknife.FULL_GRAM_SAMPLES:
        return False
    defined = get_index(asked.index).ratio and KERNEL_TABLE[asked.kernel].ratio
    known = (ratio_estimator.sample_norms(rep, asked.kernel) is not None for rep in reps)
    return defined and not asked.centre and all(known)


def _estimate_scores(
    a: Representation,
    b: Representation,
    asked: CompareConfig,
    device: str | torch.device,
    *,
    population: bool = False,  # standard errors about new samples; of blocks and ratio
) -> Estimate:
    if asked.estimator == "ratio":
        return ratio_estimator.ratio_scores(a, b, asked, device, population=population)
    if asked.estimator != "blocks":
        found = bucket_estimator.bucket_scores(a, b, asked, device)
        sketched = asked.estimator == "buckets" and KERNEL_TABLE[asked.kernel].linear
        many = same_samples(a, b) and a.samples > jackknife.FULL_GRAM_SAMPLES
        if get_index(asked.index).pair_sums and sketched and many:
            found = found.with_errors(bucket_estimator.sketch_standard_errors(a, b, asked, device))
        return found
    rows, columns = full_gram_layers(a, b, asked)
    if rows.all() and columns.all():
        return _estimate_from_full_gram(_full_gram_pairing(a, b, asked, device))
    found = _estimate_from_blocks(a, b, asked, device, population=population)
    if not rows.any() or not columns.any():
        return found
    # the rest of the table is exact; the same blocks are left out in all of it
    weight = block_estimator.block_weights(
        a.block_sizes, a.samples, centre=block_estimator.is_centred(asked)
    )
    spans = block_estimator.block_spans(a.block_sizes, weight)
    one, two = (
        [layer for layer, whole in zip(rep, which, strict=True) if whole]
        for rep, which in ((a, rows), (b, columns))
    )
    some = LayerPairing(one, two, asked, a.samples, spans, device)
    return found.with_part(_estimate_from_full_gram(some), rows, columns)


def _estimate_from_full_gram(of: LayerPairing) -> Estimate:
    index = get_index(of.asked.index)
    if index.from_whole is not None:
        return index.from_whole(of)
    if index.score is not None:
        return function_estimator.full_gram_function_scores(of)
    return block_estimator.full_gram_scores(of, chance=True)


def full_gram_layers(
    a: Representation, b: Representation, asked: CompareConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Which layers of both hold the kernel of all samples, if that is what is to be compared."""
    rows, columns = (
        np.array([has_full_gram(layer, asked.kernel) for layer in rep]) for rep in (a, b)
    )
    index = get_index(asked.index)
    offered = same_samples(a, b)
    if index.whole_samples is not None:
        offered &= a.samples <= index.whole_samples
    if not index.pair_sums:  # which have no left-out blocks to share
        offered &= bool(rows.all() and columns.all())
    return rows & offered, columns & offered


def _estimate_from_blocks(
    a: Representation,
    b: Representation,
    asked: CompareConfig,
    device: str | torch.device,
    *,
    population: bool,
) -> Estimate:
    index = get_index(asked.index)
    if index.from_blocks is not None:
        return index.from_blocks(a, b, asked, device)
    if index.score is not None:
        return function_estimator.block_function_scores(a, b, asked, device)
    return block_estimator.block_scores(a, b, asked, device, population=population)


def check_enough_samples(a: Representation, asked: CompareConfig) -> None:
    """An error if an index is asked for of too few samples to have one."""
    index = get_index(asked.index)
    debiased = index.pair_sums is not None and index.pair_sums.population and asked.centre
    fewest = _MIN_DEBIASED_SAMPLES if debiased else index.fewest
    if a.samples < fewest:
        kernels = " of centred kernels" if debiased else ""
        raise MismatchError(
            f"{asked.index}{kernels} needs at least {fewest} samples, found {a.samples}; record "
            "more, or use `index='cka'`"
        )
