"""The named kernels, and which index, estimator and centring each can be combined with.

With K_f = [f_i·f_j] and K_g = [g_i·g_j] over the same samples, the named kernels are:

    features      K_f
    gradients     K_g
    product       K_f ∘ K_g, the kernel of ψ = g fᵀ: the paper's
    sum           K_f / tr K_f + K_g / tr K_g
    elementwise   the kernel of f ∘ g, which is recorded on its own
    transport     halfway on the Bures geodesic from K_f / tr K_f to K_g / tr K_g

The paper adds K_f and K_g without normalisation, and so does `estimator="paper"`; dividing each by
its trace makes `sum` and `transport` invariant to the scale of the features. All but `transport`
act entry by entry, so they apply to packed triangles as well as to matrices.

A kernel is one entry of `KERNEL_TABLE`, an index is one file of `indices`. What each can be
computed from is declared there; `unsupported_combinations` derives from that what is refused, and
in which words. Callers are `compare`, `compare_all`, `adaptation` and `KernelClassifier`. Whether
two *files* hold what a combination needs is checked in `compare`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from ..errors import DataError, MismatchError, ResemblanceError
from ..representation.notes import Note, make_note
from .indices.registry import get_index, index_names

if TYPE_CHECKING:
    from torch import Tensor

    from ..representation.layer import Kind

Kernel = Literal["features", "gradients", "product", "sum", "elementwise", "transport"]
KERNELS: tuple[Kernel, ...] = get_args(Kernel)
KernelUse = Literal["compare_all", "adaptation", "ridge"]

# Eigenvalues of K_f under this share of their mean are taken as zero when K_f is inverted.
TRANSPORT_FLOOR = 1e-3


@dataclass(frozen=True)
class KernelSpec:
    """One named kernel.

    Attributes:
        kinds: what must have been recorded, in the order in which `of_matrices` takes it.
        of_matrices: the kernel from those of `kinds`.
        entrywise: whether `of_matrices` acts entry by entry, so that it takes packed triangles.
        over_traces: whether each kernel of `kinds` is divided by its trace first.
        linear: whether it is a sum of recorded kernels, so that it is centred where they are and
            its bucket kernel is a sketch of it.
        buckets: whether it can be formed from bucket kernels at all.
        ratio: whether the norms of all samples give its diagonal.
        strips: whether it is a single kernel, or the sum or product of two, which `KernelStrips`
            reads a few rows at a time.
        uses: the functions beside `compare` that take it.
        note: what to say of every score.
        bucket_note: what to say of scores from buckets.
    """

    kinds: tuple[Kind, ...]
    of_matrices: Callable[..., Tensor]
    entrywise: bool = True
    over_traces: bool = False
    linear: bool = True
    buckets: bool = True
    ratio: bool = True
    strips: bool = True
    uses: tuple[KernelUse, ...] = ("compare_all", "adaptation")
    note: Note | None = None
    bucket_note: Note | None = None


def _itself(k: Tensor) -> Tensor:
    return k


def _transport(kf: Tensor, kg: Tensor) -> Tensor:
    from .stored_kernels import transport_kernel

    return transport_kernel(kf, kg)


_ALL_USES: tuple[KernelUse, ...] = get_args(KernelUse)
KERNEL_TABLE: dict[Kernel, KernelSpec] = {
    "features": KernelSpec(("features",), _itself, uses=_ALL_USES),
    "gradients": KernelSpec(("gradients",), _itself, uses=_ALL_USES),
    "product": KernelSpec(
        ("features", "gradients"),
        operator.mul,
        linear=False,
        uses=_ALL_USES,
        bucket_note=make_note("product-of-buckets"),
    ),
    "sum": KernelSpec(("features", "gradients"), operator.add, over_traces=True),
    "elementwise": KernelSpec(("elementwise",), _itself, ratio=False),
    "transport": KernelSpec(
        ("features", "gradients"),
        _transport,
        entrywise=False,
        over_traces=True,
        linear=False,
        ratio=False,
        strips=False,
        uses=(),
        note=make_note("transport-floor", floor=TRANSPORT_FLOOR),
    ),
}


def required_kinds(kernel: Kernel) -> tuple[Kind, ...]:
    """What must have been recorded for a kernel."""
    return KERNEL_TABLE[kernel].kinds


Caller = Literal["compare", "compare_all", "adaptation", "ridge"]
Index = str  # a name that `index_names` has
Estimator = Literal["blocks", "ratio", "buckets", "paper"]

ESTIMATORS: tuple[Estimator, ...] = get_args(Estimator)
ESTIMATORS_OF: dict[Caller, tuple[str, ...]] = {
    "compare": ("auto", *ESTIMATORS),
    "compare_all": ("blocks",),
    "adaptation": ("blocks", "paper"),
    "ridge": ("blocks",),
}


@dataclass(frozen=True)
class CompareConfig:
    """What is asked of two networks, with nothing left to choose."""

    kernel: Kernel
    index: Index
    centre: bool
    estimator: Estimator


@dataclass(frozen=True)
class UnsupportedCombination:
    """Combinations that cannot be had: those that agree with every field given."""

    why: str
    instead: str
    use: tuple[Caller, ...] = get_args(Caller)
    kernel: tuple[Kernel, ...] = KERNELS
    index: tuple[Index, ...] = field(default_factory=index_names)
    estimator: tuple[Estimator, ...] = ESTIMATORS
    centre: tuple[bool, ...] = (True, False)
    error: type[ResemblanceError] = DataError


def unsupported_combinations() -> tuple[UnsupportedCombination, ...]:
    """What is refused, in the order in which it is checked."""
    kernels = KERNEL_TABLE.items()
    indices = [get_index(name) for name in index_names()]
    for_many = [x.name for x in indices if "compare_all" in x.uses]
    for_ridge = [name for name, kernel in kernels if "ridge" in kernel.uses]
    adapting = [name for name, kernel in kernels if "adaptation" in kernel.uses]
    rules = (
        UnsupportedCombination(
            "{index} of the {kernel} kernel cannot be computed from sample norms",
            "use `estimator='blocks'`",
            kernel=tuple(name for name, kernel in kernels if not kernel.ratio),
            estimator=("ratio",),
        ),
        UnsupportedCombination(
            "sample norms support plain CKA only, not {index}",
            "use `index='cka'`, or `estimator='blocks'`",
            index=tuple(x.name for x in indices if not x.ratio),
            estimator=("ratio",),
        ),
        UnsupportedCombination(
            "sample norms belong to uncentred kernels",
            "use `centre=False`, or `estimator='blocks'`",
            estimator=("ratio",),
            centre=(True,),
        ),
        UnsupportedCombination(
            "{index} needs blocks of shared samples: {obstacle}",
            "record both on the same samples, or use `index='cka'`",
            index=tuple(x.name for x in indices if not x.buckets),
            estimator=("buckets", "paper"),
            error=MismatchError,
        ),
        UnsupportedCombination(
            "the {kernel} kernel cannot be formed from buckets: {obstacle}",
            "record both on the same samples, whose blocks give it",
            kernel=tuple(name for name, kernel in kernels if not kernel.buckets),
            estimator=("buckets", "paper"),
            error=MismatchError,
        ),
        UnsupportedCombination(
            "the {kernel} kernel cannot be centred from buckets, which contain no centred {kernel}",
            'use `centre=False`, or `estimator="blocks"` on shared data',
            kernel=tuple(name for name, kernel in kernels if not kernel.linear),
            estimator=("buckets",),
            centre=(True,),
            error=MismatchError,
        ),
        UnsupportedCombination(
            f"`index` must be {_one_of(for_many)} for many networks; found {{index!r}}",
            "use compare for each pair",
            use=("compare_all",),
            index=tuple(x.name for x in indices if x.name not in for_many),
        ),
        UnsupportedCombination(
            "{kernel} is not available for many networks",
            "use compare for each pair",
            use=("compare_all",),
            kernel=tuple(name for name, kernel in kernels if "compare_all" not in kernel.uses),
        ),
        UnsupportedCombination(
            "the {kernel} kernel of a block is not a block of the {kernel} kernel, so it has no "
            "mean embedding here",
            f"use {_one_of(adapting)}",
            use=("adaptation",),
            kernel=tuple(name for name, _ in kernels if name not in adapting),
        ),
        UnsupportedCombination(
            f"`kernel` must be one of {', '.join(for_ridge)} for kernel ridge; found {{kernel!r}}",
            "use one of these kernels, which are defined for new samples",
            use=("ridge",),
            kernel=tuple(name for name, _ in kernels if name not in for_ridge),
        ),
    )
    return tuple(rule for rule in rules if rule.kernel and rule.index)


def _one_of(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def check_combination(
    use: Caller,
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
    for rule in unsupported_combinations():
        if use in rule.use and all(value in getattr(rule, name) for name, value in asked.items()):
            obstacle = obstacle or f"estimator is {estimator!r}"
            raise rule.error(f"{rule.why.format(**asked, obstacle=obstacle)}; {rule.instead}")


def check_names(
    kernel: str, index: str = "cka", estimator: str = "blocks", use: Caller = "compare"
) -> None:
    """An error that lists the names there are, if one is none of them."""
    known = {"kernel": KERNELS, "index": index_names(), "estimator": ESTIMATORS_OF[use]}
    for name, (what, names) in zip((kernel, index, estimator), known.items(), strict=True):
        if name not in names:
            taken = [x for x in names if not _never_supported(use, what, x)]
            raise DataError(f"`{what}` must be one of {', '.join(taken)}; found {name!r}")


def _never_supported(use: Caller, what: str, name: str) -> bool:
    """Whether a name is refused whatever else is asked."""
    others = {"kernel", "index", "estimator", "centre"} - {what}
    every = UnsupportedCombination("", "")
    return any(
        use in rule.use
        and name in getattr(rule, what)
        and all(getattr(rule, x) == getattr(every, x) for x in others)
        for rule in unsupported_combinations()
    )
