"""Which kernel, index, estimator and centring go together, and why not where they do not.

Of the names in `KERNELS`, `INDICES` and `ESTIMATORS_OF` a use, every combination can be computed
that no line of `NOT_OFFERED` names, for two networks (`compare`), for many (`compare_all`), as a
mean embedding (`adaptation`) or by kernel ridge (`KernelClassifier`). Whether two *files* hold what
a combination needs is `two_networks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ..errors import DataError, MismatchError, ResemblanceError

Use = Literal["compare", "compare_all", "adaptation", "ridge"]
Kernel = Literal["features", "gradients", "product", "sum", "elementwise", "transport"]
Index = Literal["cka", "cka-debiased", "nbs", "spectral", "rsa"]
Estimator = Literal["blocks", "ratio", "buckets", "paper"]

KERNELS: tuple[Kernel, ...] = get_args(Kernel)
INDICES: tuple[Index, ...] = get_args(Index)
ESTIMATORS: tuple[Estimator, ...] = get_args(Estimator)
ESTIMATORS_OF: dict[Use, tuple[str, ...]] = {
    "compare": ("auto", *ESTIMATORS),
    "compare_all": ("blocks",),
    "adaptation": ("blocks", "paper"),
    "ridge": ("blocks",),
}


@dataclass(frozen=True)
class Question:
    """What is asked of two networks, with nothing left to choose."""

    kernel: Kernel
    index: Index
    centre: bool
    estimator: Estimator


@dataclass(frozen=True)
class NotOffered:
    """Combinations that cannot be had: those that agree with every field given."""

    why: str
    instead: str
    use: tuple[Use, ...] = get_args(Use)
    kernel: tuple[Kernel, ...] = KERNELS
    index: tuple[Index, ...] = INDICES
    estimator: tuple[Estimator, ...] = ESTIMATORS
    centre: tuple[bool, ...] = (True, False)
    error: type[ResemblanceError] = DataError


NOT_OFFERED = (
    NotOffered(
        "norms of samples say nothing about {index} of the {kernel} kernel",
        "use estimator='blocks'",
        kernel=("elementwise", "transport"),
        estimator=("ratio",),
    ),
    NotOffered(
        "norms of samples give plain CKA alone, not {index}",
        "use index='cka', or estimator='blocks'",
        index=("cka-debiased", "nbs", "spectral", "rsa"),
        estimator=("ratio",),
    ),
    NotOffered(
        "norms of samples are those of uncentred kernels",
        "use centre=False, or estimator='blocks'",
        estimator=("ratio",),
        centre=(True,),
    ),
    NotOffered(
        "{index} needs blocks of shared samples: {obstacle}",
        "record both on the same samples, or use index='cka'",
        index=("rsa", "cka-debiased"),
        estimator=("buckets", "paper"),
        error=MismatchError,
    ),
    NotOffered(
        "the {kernel} kernel cannot be centred from buckets, which hold no centred {kernel}",
        'use centre=False, or estimator="blocks" on shared data',
        kernel=("product", "transport"),
        estimator=("buckets",),
        centre=(True,),
        error=MismatchError,
    ),
    NotOffered(
        "index must be cka or cka-debiased for many networks; found {index!r}",
        "use compare for each pair",
        use=("compare_all",),
        index=("nbs", "spectral", "rsa"),
    ),
    NotOffered(
        "transport is not offered for many networks",
        "use compare for each pair",
        use=("compare_all",),
        kernel=("transport",),
    ),
    NotOffered(
        "the transport kernel of a block is not a block of the transport kernel, so it has no mean "
        "embedding here",
        "use features, gradients, product, sum or elementwise",
        use=("adaptation",),
        kernel=("transport",),
    ),
    NotOffered(
        "kernel must be one of features, gradients, product for kernel ridge; found {kernel!r}",
        "use one of those, whose vectors a new sample has as well",
        use=("ridge",),
        kernel=("sum", "elementwise", "transport"),
    ),
)


def check(
    use: Use,
    kernel: str,
    index: str = "cka",
    estimator: str = "blocks",
    centre: bool = False,
    *,
    obstacle: str | None = None,  # to blocks of shared samples, where it led away from them
) -> None:
    """An error that says why a combination is not offered, and what to use instead."""
    check_names(kernel, index, estimator, use)
    asked = {"kernel": kernel, "index": index, "estimator": estimator, "centre": centre}
    for rule in NOT_OFFERED:
        if use in rule.use and all(value in getattr(rule, name) for name, value in asked.items()):
            obstacle = obstacle or f"estimator is {estimator!r}"
            raise rule.error(f"{rule.why.format(**asked, obstacle=obstacle)}; {rule.instead}")


def check_names(
    kernel: str, index: str = "cka", estimator: str = "blocks", use: Use = "compare"
) -> None:
    """An error that lists the names there are, if one is none of them."""
    known = {"kernel": KERNELS, "index": INDICES, "estimator": ESTIMATORS_OF[use]}
    for name, (what, names) in zip((kernel, index, estimator), known.items(), strict=True):
        if name not in names:
            taken = [x for x in names if not _never_taken(use, what, x)]
            raise DataError(f"{what} must be one of {', '.join(taken)}; found {name!r}")


def _never_taken(use: Use, what: str, name: str) -> bool:
    """Whether a name is refused whatever else is asked."""
    others = {"kernel", "index", "estimator", "centre"} - {what}
    every = NotOffered("", "")
    return any(
        use in rule.use
        and name in getattr(rule, what)
        and all(getattr(rule, x) == getattr(every, x) for x in others)
        for rule in NOT_OFFERED
    )
