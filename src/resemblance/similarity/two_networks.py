"""`compare`: two Representations in, a table of similarities with standard errors out.

This module decides which estimator is used, and refuses files that cannot be compared. The
arithmetic is in `whole_estimates` (exact kernels of all samples), `block_estimates`,
`ratio_estimates` and `block_spectra` (of some of them) and in `bucket_estimates` (sketches of any
data), the result in `comparison`.
"""

from __future__ import annotations

import itertools
import warnings
from dataclasses import asdict, replace
from typing import Literal

import numpy as np
import torch

from .._ops.device_choice import usable
from ..errors import MismatchError, ResemblanceWarning
from ..representation.as_given import Given, recording
from ..representation.representation import Representation, difference
from . import (
    block_estimates,
    block_spectra,
    bucket_estimates,
    combinations,
    kernels,
    ratio_estimates,
    whole_estimates,
)
from .combinations import Estimator, Index, Kernel, Question
from .comparison import Comparison
from .doubtful_errors import of_small_blocks, untrusted
from .estimate import Estimate
from .layer_matching import known, match
from .same_predictions import Behaviour, behaviour
from .same_predictions import obstacle as no_outputs
from .whole_estimates import Pairing

_UNPAIRED = (
    "the two networks saw different samples, which are paired by position alone: such scores mean "
    "little in theory. No labels are needed, so record both on one shared set of samples instead"
)
_RENAMED = (
    "the samples of the two networks go by different names (data_id {!r} and {!r}) and count as "
    "different, though they hold the same; record both under one data_id, or under none"
)
_REORDERED = (
    "their data go by one name and hold the same samples, but in another order, so that samples "
    "would be paired wrongly"
)
_REDRAWN = "of the same sequences other tokens were drawn, as the networks take others for special"
_OTHER_ORDER = (
    "they hold the same samples by their keys, but in another order, so that their blocks are of "
    "different ones"
)
_BY_KEYS = (
    "taken from buckets, in which samples are paired by their keys: both networks saw the same "
    "ones, but in another order, so that their blocks are of different ones"
)
_PRODUCT = (
    "the product of bucket kernels is not a sketch of the product kernel (different samples of a "
    "bucket meet in it): compare such scores only with each other"
)
_NBS = (
    "NBS from a sketch or from blocks lies above that of all samples where kernels have many "
    "directions, by up to 0.3 and 0.5 as measured: compare such scores only with each other"
)
_SPECTRAL = (
    "a spectrum from a sketch or from blocks is that of few samples, which makes unlike ones more "
    "alike, by up to 0.2 and 0.3 as measured: compare such scores only with each other"
)
_FEWEST_DEBIASED = 4  # samples
_SKETCHED = (
    "taken from buckets, which hold all samples: few carry these kernels, and most of those lie "
    "outside of the blocks"
)
_NO_RATIO = (
    "estimator='ratio' is not offered for tokens, whose norms say nothing about which sequence "
    "they are of; use estimator='blocks'"
)
_OTHER_TOKENS = (
    "{!r} and {!r} were recorded token by token with different tokenizers, so their tokens are not "
    "the same samples; record whole texts with unit='sample', a pool such as 'mean' and one data_id"
)
_SKETCHED_TOKENS = (
    "buckets take tokens for independent samples: standard errors leave out that those of one "
    "sequence are not, and are too small"
)
_TRANSPORT = f"transport inverts K_f on eigenvalues above {kernels.TRANSPORT_FLOOR:g} of their mean"


def compare(
    a: Given,
    b: Given,
    *,
    kernel: Kernel = "product",
    index: Index = "cka",
    centre: bool | None = None,
    estimator: Estimator | Literal["auto"] = "auto",
    device: str | torch.device = "cpu",
) -> Comparison:
    """How alike two networks are, layer by layer, with standard errors and a chance level.

    Args:
        a, b: from `record`, with the same seed and settings, or paths of files that hold them.
        kernel: `features` (same eyes?), `gradients` (same aims?), `product` (both: the paper's),
            `sum`, `elementwise`, `transport`.
        index: `cka`, `cka-debiased` (chance is zero, whatever the number of samples), `nbs`,
            `spectral` (needs no pairing of samples), `rsa`. On centred features NBS is the
            Procrustes similarity. The CCA family needs the features themselves, which a
            Representation does not keep; CKA took its place because CCA cannot tell apart
            layers wider than the number of samples (Kornblith et al. 2019).
        centre: take the mean over samples off first. None does so for `features`, where the mean
            otherwise drowns everything, and not for the others, as in the paper.
        estimator: `blocks` (exact kernels of shared samples, of all of them up to 1,024: unbiased,
            with a chance level), `ratio` (blocks and the norms of all samples, for plain CKA of
            kernels that are not centred), `buckets` (sketches: any two data sets), `paper`
            (Algorithm 1 as published). `auto` takes blocks when both networks saw the same
            samples, else buckets. Beyond 1,024 samples it takes `ratio` where that is offered, and
            buckets where few samples carry a kernel that they can sketch, and says so.
            For `nbs` it takes whole kernels of up to 512 samples, else buckets, whose bias is
            smaller, but for the product, which they do not sketch.
        device: where to compute, such as `"cuda"`; on the CPU by default.

    What standard errors are of is said in `Comparison`; `Comparison.interval` makes intervals of
    them. Where so few samples carry a kernel that an error bar cannot be trusted, a warning says
    so. Bias and cost: see `whole_estimates.scores`, `block_estimates.scores`,
    `ratio_estimates.scores` and `bucket_estimates.scores`.

    >>> import torch, resemblance as rs
    >>> x = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    >>> rep = rs.record_arrays(x, data_id="x")
    >>> float(rs.compare(rep, rep, kernel="features").scores[0, 0].round(6))
    1.0
    """
    a, b, device = recording(a), recording(b), usable(device)
    combinations.check_names(kernel, index, estimator)
    check_recorded(a, b, kernel)
    asked = question(a, b, kernel, index, centre, estimator)
    refuse_few(a, asked)
    found = _estimate(a, b, asked, device)
    predicted = behaviour(a, b) if no_outputs(a, b) is None else None
    return result(a, b, asked, found, predicted, automatic=estimator == "auto")


def result(
    a: Representation,
    b: Representation,
    asked: Question,
    found: Estimate,
    predicted: Behaviour | None,
    *,
    automatic: bool,  # whether the estimator was chosen here
) -> Comparison:
    """An estimate with what there is to say about it; warns of what it cannot be trusted in."""
    kernel, index = asked.kernel, asked.index
    paired, blocks = same_samples(a, b), asked.estimator in ("blocks", "ratio")
    chosen = automatic and no_blocks(a, b) is None
    whole = asked.estimator == "blocks" and all(x.all() for x in whole_layers(a, b, asked))
    notes = [
        *([_PRODUCT] if kernel == "product" and asked.estimator == "buckets" else []),
        *([_NBS] if index == "nbs" and not whole else []),
        *([_SPECTRAL] if index == "spectral" and not whole else []),
        *([_TRANSPORT] if kernel == "transport" else []),
        *([_SKETCHED_TOKENS] if a.settings.tokens > 1 and not blocks else []),
        *([_SKETCHED] if chosen and asked.estimator == "buckets" and index == "cka" else []),
        *([_BY_KEYS] if automatic and no_blocks(a, b) == _OTHER_ORDER else []),
    ]
    alarms = [] if paired or index == "spectral" else [_unpaired(a, b)]
    constant = [
        constant_layer(rep.name, name)
        for rep, lives in zip((a, b), found.alive, strict=True)
        for name, live in zip(rep.layer_names, lives, strict=True)
        if not live
    ]
    alarms += dict.fromkeys(constant)  # once, also when a network is compared with itself
    alarms += untrusted(a, found)
    alarms += of_small_blocks(a, asked)
    for alarm in alarms:
        warnings.warn(alarm, ResemblanceWarning, stacklevel=3)
    matching = match(known(a), known(b), found.scores)
    out = Comparison(
        models=(a.name, b.name),
        rows=tuple(a.layer_names),
        columns=tuple(b.layer_names),
        scores=found.scores,
        stderr=found.stderr,
        chance=found.chance,
        chance_high=found.chance_high,
        **asdict(asked),
        paired=paired,
        samples=(sum(a.block_sizes), sum(b.block_sizes)) if blocks else (a.samples, b.samples),
        notes=(*notes, *alarms),
        df=found.df,
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


def question(
    a: Representation,
    b: Representation,
    kernel: Kernel,
    index: Index,
    centre: bool | None,
    estimator: Estimator | Literal["auto"],
) -> Question:
    """The question with its defaults, or an error that says why it cannot be answered."""
    no_block = no_blocks(a, b, paired=index != "spectral")
    no_bucket = no_buckets(a, b, paired=index != "spectral")
    if centre is None:
        centre = kernel == "features" and estimator != "paper"
    if estimator == "auto":
        estimator = _best(a, b, Question(kernel, index, centre, "blocks"), no_block, no_bucket)
    combinations.check("compare", kernel, index, estimator, centre, obstacle=no_block)
    if estimator in ("blocks", "ratio") and no_block:
        raise MismatchError(
            f"blocks cannot be compared: {no_block}; record both with the same data, seed and "
            "block size, or use estimator='buckets'"
        )
    if estimator == "ratio" and a.settings.tokens > 1:
        raise MismatchError(_NO_RATIO)
    if estimator == "ratio" and not _norms_known(a, b, kernel):
        raise MismatchError(ratio_estimates.NO_NORMS)
    if estimator in ("buckets", "paper") and no_bucket:
        raise MismatchError(
            f"buckets cannot be compared: {no_bucket}; record both with the same sketch"
            + (f" (nor can blocks: {no_block})" if no_block else ", or use estimator='blocks'")
        )
    return Question(kernel, index, centre, estimator)


def _best(
    a: Representation,
    b: Representation,
    asked: Question,
    no_block: str | None,
    no_bucket: str | None,
) -> Estimator:
    """What `auto` takes."""
    if no_block:
        return "buckets"
    if asked.index == "nbs":
        # it grows with fewer samples than directions, and there are more buckets than block rows
        more = not no_bucket and a.settings.buckets > a.settings.block
        held = asked.kernel != "product" and not (asked.kernel == "transport" and asked.centre)
        exact = all(x.all() for x in whole_layers(a, b, asked))
        return "buckets" if more and held and not exact else "blocks"
    if a.settings.tokens > 1:
        return "blocks"
    plain = asked.index == "cka" and not asked.centre
    known = asked.kernel not in ("elementwise", "transport") and _norms_known(a, b, asked.kernel)
    if not plain or not known or a.samples <= block_estimates.FEW:
        return "blocks"
    sketched = asked.kernel != "product" and not no_bucket
    heavy = sketched and all(ratio_estimates.few_carry(rep, asked.kernel) for rep in (a, b))
    return "buckets" if heavy else "ratio"


def _norms_known(a: Representation, b: Representation, kernel: Kernel) -> bool:
    return all(ratio_estimates.norms(rep, kernel) is not None for rep in (a, b))


def _estimate(
    a: Representation, b: Representation, asked: Question, device: str | torch.device
) -> Estimate:
    if asked.estimator == "ratio":
        return ratio_estimates.scores(a, b, asked, device)
    if asked.estimator != "blocks":
        found = bucket_estimates.scores(a, b, asked, device)
        sketched = asked.estimator == "buckets" and asked.kernel not in ("product", "transport")
        many = same_samples(a, b) and a.samples > block_estimates.FEW
        if asked.index == "cka" and sketched and many:
            found = found.with_errors(bucket_estimates.sketch_errors(a, b, asked, device))
        return found
    rows, columns = whole_layers(a, b, asked)
    if rows.all() and columns.all():
        spans = whole_estimates.groups(a.samples)
        every = Pairing(a.layers, b.layers, asked, a.samples, spans, device)
        return whole_estimates.scores(every, a.settings.seed)
    found = _from_blocks(a, b, asked, device)
    if not rows.any() or not columns.any():
        return found
    # the rest of the table is exact; the same blocks are left out in all of it
    weight = block_estimates.weights(
        a.block_sizes, a.samples, centre=block_estimates.is_centred(asked)
    )
    ends = [0, *np.cumsum(a.block_sizes).tolist()]
    spans = [span for span, w in zip(itertools.pairwise(ends), weight, strict=True) if w]
    one, two = (
        [layer for layer, whole in zip(rep, which, strict=True) if whole]
        for rep, which in ((a, rows), (b, columns))
    )
    some = Pairing(one, two, asked, a.samples, spans, device)
    return found.with_part(whole_estimates.scores(some, a.settings.seed), rows, columns)


def whole_layers(
    a: Representation, b: Representation, asked: Question
) -> tuple[np.ndarray, np.ndarray]:
    """Which layers of both hold the kernel of all samples, if that is what is to be compared."""
    rows, columns = (
        np.array([whole_estimates.is_whole(layer, asked.kernel) for layer in rep]) for rep in (a, b)
    )
    offered = asked.index in whole_estimates.INDICES and same_samples(a, b)
    if asked.index == "nbs":
        offered &= a.samples <= whole_estimates.NBS_SAMPLES
    if asked.index in ("nbs", "spectral"):  # which have no left-out blocks to share
        offered &= bool(rows.all() and columns.all())
    return rows & offered, columns & offered


def _from_blocks(
    a: Representation, b: Representation, asked: Question, device: str | torch.device
) -> Estimate:
    if asked.index == "nbs":
        return block_spectra.nbs_scores(a, b, asked, device)
    if asked.index == "spectral":
        together = same_samples(a, b) and a.block_numbers == b.block_numbers
        return block_spectra.spectral_scores(a, b, asked, device, paired=together)
    return block_estimates.scores(a, b, asked, device)


def _unpaired(a: Representation, b: Representation) -> str:
    """What to say of different samples, or of the same under other names."""
    # of arrays nothing but their names is known
    known = a.model.fingerprint and b.model.fingerprint and a.block_hashes and a.data.content
    same = (a.samples, a.data.content, a.block_hashes) == (
        b.samples,
        b.data.content,
        b.block_hashes,
    )
    return _RENAMED.format(a.data.id, b.data.id) if known and same else _UNPAIRED


def constant_layer(model: str, name: str) -> str:
    """What to say of a layer with no direction."""
    return (
        f"layer {name!r} of {model!r} is constant on these data, or nearly so: its scores are "
        "undefined"
    )


def same_samples(a: Representation, b: Representation) -> bool:
    """Whether both were recorded on the same samples, by fingerprint."""
    return a.samples == b.samples and a.data.fingerprint == b.data.fingerprint


def no_blocks(a: Representation, b: Representation, *, paired: bool = True) -> str | None:
    """Why the blocks of two Representations cannot be compared, or None if they can."""
    if not a.block_sizes or not b.block_sizes:
        return "no blocks were recorded"
    one, two = max(a.block_sizes), max(b.block_sizes)
    if min(one, two) < 2:
        return "a single sample has no pairs"
    if not paired:
        return None if one == two else f"block differs: {one} and {two} samples"
    if not same_samples(a, b):
        return "they were recorded on different samples"
    trouble = difference(a, b, ("seed", "block"))
    if trouble is None and _any_keyed(a, b) and a.block_hashes != b.block_hashes:
        return _OTHER_ORDER
    if trouble is None and not _alike(a, b):
        return "their blocks hold different samples"
    return trouble or mispaired(a, b)


def _alike(a: Representation, b: Representation) -> bool:
    """Whether blocks have the same places and sizes."""
    return (a.block_sizes, a.block_numbers) == (b.block_sizes, b.block_numbers)


def _any_keyed(a: Representation, b: Representation) -> bool:
    """Whether samples of one are known by keys, and came in an order of their own."""
    return "keyed" in (a.data.order, b.data.order)


def mispaired(a: Representation, b: Representation) -> str | None:
    """Why samples of one index are different ones in two recordings, or None if they are not.

    Where data go by no name, a fingerprint has each sample's content with its index, but not which
    tokens of it were drawn; where samples have keys, the index is the sample's own.
    """
    untold = a.data.id is not None or a.settings.unit == "token"
    by_index = same_samples(a, b) and untold and not _any_keyed(a, b)
    known = _alike(a, b) and difference(a, b, ("seed", "block")) is None
    if not (by_index and known and _reordered(a, b)):
        return None
    return _REDRAWN if a.data.id is None else _REORDERED


def _reordered(a: Representation, b: Representation) -> bool:
    """Whether samples that go by one name are the same ones in another order.

    Where preprocessing made their content differ, their labels tell, if both have them.
    """
    same_content = a.data.content == b.data.content
    known = a.block_hashes is not None and b.block_hashes is not None
    if known and a.data.content is not None and same_content:
        return a.block_hashes != b.block_hashes
    labelled = a.label_hashes is not None and b.label_hashes is not None
    return labelled and a.data.labels == b.data.labels and a.label_hashes != b.label_hashes


def no_buckets(a: Representation, b: Representation, *, paired: bool = True) -> str | None:
    """Why the buckets of two Representations cannot be compared, or None if they can."""
    if not a.settings.buckets or not b.settings.buckets:
        return "none were recorded"
    trouble = difference(a, b, ("seed", "buckets", "per_sample", "max_dim"))
    return trouble or (mispaired(a, b) if paired else None)


def refuse_few(a: Representation, asked: Question) -> None:
    """An error if a debiased index, centred, is asked for of too few samples to have one."""
    if asked.index == "cka-debiased" and asked.centre and a.samples < _FEWEST_DEBIASED:
        raise MismatchError(
            f"cka-debiased of centred kernels takes {_FEWEST_DEBIASED} samples at least, found "
            f"{a.samples}; record more, or use index='cka'"
        )


def check_recorded(a: Representation, b: Representation, kernel: Kernel) -> None:
    """An error if a kernel was not recorded, or not in the same way, by both."""
    for rep in (a, b):
        if not rep.complete:
            there, count = len(rep.data.shards), rep.data.shards[0][1]
            raise MismatchError(
                f"{rep.name!r} is {there} of {count} shards of a recording; record the others and "
                "put all of them together with merge"
            )
        for kind in set(kernels.needs(kernel)).difference(rep[0].kinds):
            remedy = "use kernel='features', or record it again with gradients"
            if kind == "elementwise":
                remedy = "record it again with elementwise=True"
            raise MismatchError(
                f"kernel {kernel!r} needs {kind}, which {rep.name!r} lacks; {remedy}"
            )
    of_gradients = () if kernel == "features" else ("target", "beta")
    trouble = difference(a, b, ("unit", "tokens", "pool", *of_gradients))
    if trouble:
        raise MismatchError(f"{trouble}; record both with the same setting")
    made_by = {rep.model.tokenizer for rep in (a, b)} - {None}
    if a.settings.unit == "token" and len(made_by) > 1:
        raise MismatchError(_OTHER_TOKENS.format(a.name, b.name))
