"""CKA: the cosine of two kernels, plain or centred (Kornblith et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..pair_statistics import norm_products, unbiased_inner_product
from ..stored_kernels import centred_or_zero, checked_kernels, clamped_ratio
from .registry import PairSumRule, SimilarityIndex


def cka(k1: Any, k2: Any, *, centre: bool = True) -> float:
    """Kernel alignment ⟨K1, K2⟩_F / (‖K1‖_F ‖K2‖_F), in [0, 1].

    Independent features do not score zero: the chance level depends on n and on the rank.
    Cost: O(n²).

    Reference: Kornblith et al. 2019 for centred kernels; Tang et al. 2020 for uncentred ones.

    Args:
        k1: the first kernel, an array (n, n).
        k2: the second kernel over the same samples, an array (n, n).
        centre: whether each kernel is first centred, HKH with H = I − 11ᵀ/n.

    Returns:
        The alignment.

    Raises:
        DataError: if a kernel is zero, or constant once it is centred.

    Example:
        >>> import numpy as np
        >>> x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        >>> round(cka(x @ x.T, 3 * x @ x.T), 6)
        1.0
    """
    a, b = checked_kernels(k1, k2)
    if centre:
        a, b = centred_or_zero(a), centred_or_zero(b)
    return clamped_ratio((a * b).sum(), a.norm() * b.norm())


def _from_buckets(
    one: Tensor, two: Tensor, groups: Sequence[slice], samples: tuple[int, int] | None
) -> tuple[Tensor, Tensor]:
    """Cosines of kernels, less the isotropic part of a sketch where the `samples` are given."""
    m = one.shape[-1]

    def inner(x: Tensor, y: Tensor) -> list[Tensor]:
        return [x.flatten(1) @ y.flatten(1).T, x.square().sum((1, 2)), y.square().sum((1, 2))]

    def linear(group: slice) -> list[Tensor]:
        traces = [k.diagonal(dim1=1, dim2=2)[:, group].sum(1) for k in (one, two)]
        return [*traces, one.new_tensor([group.stop - group.start])]

    def score(
        cross: Tensor, own1: Tensor, own2: Tensor, t1: Tensor, t2: Tensor, buckets: Tensor
    ) -> Tensor:
        if samples is not None:
            n1, n2 = (n * buckets / m for n in samples)  # those in the buckets
            isotropic = (1 - 2 / torch.maximum(n1, n2)) / buckets
            cross = cross - t1[..., :, None] * t2[..., None, :] * isotropic[..., None]
            # no kernel of n samples has a smaller norm than its trace over √n
            own1, own2 = (
                torch.maximum(own - t * t / buckets * (1 - 2 / n), t * t / n)
                for own, t, n in ((own1, t1, n1), (own2, t2, n2))
            )
        return cross / norm_products(own1, own2)

    gone = []
    for g in groups:  # entries that have their row or their column in the group
        strip, inside = inner(one[:, g], two[:, g]), inner(one[:, g, g], two[:, g, g])
        gone.append([2 * x - y for x, y in zip(strip, inside, strict=True)] + linear(g))
    whole = inner(one, two) + linear(slice(0, m))
    left = [x - torch.stack(y) for x, y in zip(whole, zip(*gone, strict=True), strict=True)]
    return score(*whole), score(*left)


INDEX = SimilarityIndex(
    "cka",
    buckets=True,
    ratio=True,
    uses=("compare", "compare_all"),
    pair_sums=PairSumRule(unbiased_inner_product),
    from_buckets=_from_buckets,
)
