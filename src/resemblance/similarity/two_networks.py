"""`compare`: two Representations in, a table of similarities with standard errors out.

This module decides which estimator is used, and refuses files that cannot be compared. The
arithmetic is in `block_estimates` and `block_spectra` (exact kernels of shared samples) and in
`bucket_estimates` (sketches of any data), the result in `comparison`.
"""

from __future__ import annotations

import warnings
from dataclasses import asdict
from typing import Literal

import torch

from ..errors import MismatchError, ResemblanceWarning
from ..representation.representation import Representation, difference
from . import block_estimates, block_spectra, bucket_estimates, combinations, kernels
from .combinations import Estimator, Index, Kernel, Question
from .comparison import Comparison

_UNPAIRED = (
    "the two networks saw different samples, which are paired by position alone: such scores mean "
    "little in theory. No labels are needed, so record both on one shared set of samples instead"
)
_PRODUCT = (
    "the product of bucket kernels is not a sketch of the product kernel (different samples of a "
    "bucket meet in it): compare such scores only with each other"
)
_NBS = (
    "NBS from a sketch or from blocks lies above that of all samples where kernels have many "
    "directions: compare such scores only with each other"
)
_TRANSPORT = f"transport inverts K_f on eigenvalues above {kernels.TRANSPORT_FLOOR:g} of their mean"


def compare(
    a: Representation,
    b: Representation,
    *,
    kernel: Kernel = "product",
    index: Index = "cka",
    centre: bool | None = None,
    estimator: Estimator | Literal["auto"] = "auto",
    device: str | torch.device = "cpu",
) -> Comparison:
    """How alike two networks are, layer by layer, with standard errors and a chance level.

    Args:
        a, b: from `record`, with the same seed and settings.
        kernel: `features` (same eyes?), `gradients` (same aims?), `product` (both: the paper's),
            `sum`, `elementwise`, `transport`.
        index: `cka`, `cka-debiased` (chance is zero, whatever the number of samples), `nbs`,
            `spectral` (needs no pairing of samples), `rsa`. On centred features NBS is the
            Procrustes similarity. The CCA family needs the features themselves, which a
            Representation does not keep; CKA took its place because CCA cannot tell apart
            layers wider than the number of samples (Kornblith et al. 2019).
        centre: take the mean over samples off first. None does so for `features`, where the mean
            otherwise drowns everything, and not for the others, as in the paper.
        estimator: `blocks` (exact kernels of shared samples: unbiased, with a chance level),
            `buckets` (sketches: any two data sets), `paper` (Algorithm 1 as published). `auto`
            takes blocks when both networks saw the same samples, else buckets; for `nbs` it
            takes buckets, whose bias is smaller, but for the product, which they do not sketch.
        device: where to compute, such as `"cuda"`; on the CPU by default.

    Bias and cost: see `block_estimates.scores` and `bucket_estimates.scores`.

    >>> import torch, resemblance as rs
    >>> x = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    >>> rep = rs.record_arrays(x, data_id="x")
    >>> float(rs.compare(rep, rep, kernel="features").scores[0, 0].round(6))
    1.0
    """
    combinations.check_names(kernel, index, estimator)
    check_recorded(a, b, kernel)
    asked = _question(a, b, kernel, index, centre, estimator)
    found = _estimate(a, b, asked, device)
    paired, blocks = same_samples(a, b), asked.estimator == "blocks"
    notes = [
        *([_PRODUCT] if kernel == "product" and asked.estimator == "buckets" else []),
        *([_NBS] if index == "nbs" else []),
        *([_TRANSPORT] if kernel == "transport" else []),
    ]
    alarms = [] if paired or index == "spectral" else [_UNPAIRED]
    constant = [
        constant_layer(rep.name, name)
        for rep, lives in zip((a, b), found.alive, strict=True)
        for name, live in zip(rep.layer_names, lives, strict=True)
        if not live
    ]
    alarms += dict.fromkeys(constant)  # once, also when a network is compared with itself
    for alarm in alarms:
        warnings.warn(alarm, ResemblanceWarning, stacklevel=2)
    return Comparison(
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
    )


def _question(
    a: Representation,
    b: Representation,
    kernel: Kernel,
    index: Index,
    centre: bool | None,
    estimator: Estimator | Literal["auto"],
) -> Question:
    """The question with its defaults, or an error that says why it cannot be answered."""
    no_block = no_blocks(a, b, paired=index != "spectral")
    no_bucket = no_buckets(a, b)
    if estimator == "auto":
        # NBS grows with fewer samples than directions, and there are more buckets than block rows
        more = not no_bucket and a.settings.buckets > a.settings.block
        sketched = index == "nbs" and kernel != "product" and more
        estimator = "buckets" if no_block or sketched else "blocks"
    if centre is None:
        centre = kernel == "features" and estimator != "paper"
    combinations.check("compare", kernel, index, estimator, centre, obstacle=no_block)
    if estimator == "blocks" and no_block:
        raise MismatchError(
            f"blocks cannot be compared: {no_block}; record both with the same data, seed and "
            "block size, or use estimator='buckets'"
        )
    if estimator != "blocks" and no_bucket:
        raise MismatchError(
            f"buckets cannot be compared: {no_bucket}; record both with the same sketch"
            + (f" (nor can blocks: {no_block})" if no_block else ", or use estimator='blocks'")
        )
    return Question(kernel, index, centre, estimator)


def _estimate(
    a: Representation, b: Representation, asked: Question, device: str | torch.device
) -> block_estimates.Estimate:
    if asked.estimator != "blocks":
        return bucket_estimates.scores(a, b, asked, device)
    if asked.index == "nbs":
        return block_spectra.nbs_scores(a, b, asked, device)
    if asked.index == "spectral":
        together = same_samples(a, b) and a.block_numbers == b.block_numbers
        return block_spectra.spectral_scores(a, b, asked, device, paired=together)
    return block_estimates.scores(a, b, asked, device)


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
    if trouble is None and (a.block_sizes, a.block_numbers) != (b.block_sizes, b.block_numbers):
        return "their blocks hold different samples"
    return trouble


def no_buckets(a: Representation, b: Representation) -> str | None:
    """Why the buckets of two Representations cannot be compared, or None if they can."""
    if not a.settings.buckets or not b.settings.buckets:
        return "none were recorded"
    return difference(a, b, ("seed", "buckets", "per_sample", "max_dim"))


def check_recorded(a: Representation, b: Representation, kernel: Kernel) -> None:
    """An error if a kernel was not recorded, or not in the same way, by both."""
    for rep in (a, b):
        for kind in set(kernels.needs(kernel)).difference(rep[0].kinds):
            remedy = "use kernel='features', or record it again with gradients"
            if kind == "elementwise":
                remedy = "record it again with elementwise=True"
            raise MismatchError(
                f"kernel {kernel!r} needs {kind}, which {rep.name!r} lacks; {remedy}"
            )
    trouble = difference(a, b, ["pool"] if kernel == "features" else ["pool", "target", "beta"])
    if trouble:
        raise MismatchError(f"{trouble}; record both with the same setting")
