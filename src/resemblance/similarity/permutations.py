"""The permutation null: chance level and p-value of any index, and of the best of many layers.

The samples of the second network are put in a random order, the same at all of its layers, and all
pairs of layers are compared again. What an index scores then is what it scores without any relation
of the two networks, at these kernels and this number of samples. With K such orders,

    p  =  (1 + number of permuted scores that are as high) / (K + 1),

and the 95 % level is the ⌈0.95 (K + 1)⌉-th smallest of the permuted scores and the score itself.
Both are exact at any number of samples if the networks are unrelated and samples independent. The
largest score of the whole table in each order is the null of the best pair of layers, which
corrects for having chosen it. Benjamini and Hochberg's q-values correct a whole table.

Cost: K times what the scores cost without what is computed once for each layer.

Reference: Gröger et al. 2026 (calibration); Westfall and Young 1993; Benjamini and Hochberg 1995.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from .._utils.progress import progress_bar
from .block_estimator import LayerPairing, permuted_full_gram_scores
from .function_estimator import function_scores, is_long, prepare_layers
from .indices.registry import SimilarityIndex, get_index
from .jackknife import Estimate

FEWEST_PERMUTATIONS = 19  # below, no p-value is 0.05
_LEVEL = 0.95
_ROUND_OFF = 1e-9  # permuted scores this much lower count as equal


def with_permutations(found: Estimate, of: LayerPairing, count: int) -> Estimate:
    """An estimate with chance levels and p-values from so many orders of samples."""
    index, tables = get_index(of.asked.index), []
    generator = torch.Generator().manual_seed(0)
    orders = (torch.randperm(of.samples, generator=generator).to(of.device) for _ in range(count))
    permuted = (
        permuted_full_gram_scores(of, orders)
        if index.pair_sums
        else _permuted_function_scores(index, of, orders)
    )
    with progress_bar(is_long(of), count, "permutations", "permutations") as advance:
        for table in permuted:
            scores = table.cpu().numpy().clip(*index.bounds)
            tables.append(index.transform(scores) if index.transform else scores)
            advance(1)
    every = np.stack(tables)
    best = np.fmax.reduce(every.reshape(count, -1), axis=1)  # NaN where no layer has a score
    return replace(
        found,
        chance=every.mean(0),
        chance_high=permuted_level(found.scores, every),
        p_value=permuted_p_value(found.scores, every),
        permuted_best=best,
    )


def _permuted_function_scores(
    index: SimilarityIndex, of: LayerPairing, orders: Iterator[Tensor]
) -> Iterator[Tensor]:
    sides = prepare_layers(of)
    alive = [torch.stack([x.alive for x in side]) for side in sides]
    rows, columns = ([x.prepared for x in side] for side in sides)
    for order in orders:
        yield function_scores(index, [rows, [x.permuted(order) for x in columns]], alive)


def permuted_level(score: np.ndarray, permuted: np.ndarray) -> np.ndarray:  # (...), (K, ...)
    """The 95 % level of permuted scores, with the score itself among them."""
    every = np.sort(np.concatenate([score[None], permuted]), axis=0)  # NaN last
    rank = int(np.ceil(_LEVEL * len(every)))
    return np.where(np.isnan(score), np.nan, every[rank - 1])


def permuted_p_value(score: np.ndarray, permuted: np.ndarray) -> np.ndarray:  # (...), (K, ...)
    """The share of orders in which the score is as high, the one observed among them."""
    as_high = (permuted >= score - _ROUND_OFF).sum(0)
    return np.where(np.isnan(score), np.nan, (1 + as_high) / (1 + len(permuted)))


def q_values(p: np.ndarray) -> np.ndarray:
    """Benjamini and Hochberg's: the false discovery rate at which each p-value is significant.

    It holds for independent tests and for positively dependent ones. NaN is left out.

    >>> q_values(np.array([[0.01, 0.04], [0.03, np.nan]])).round(3).tolist()
    [[0.03, 0.04], [0.04, nan]]
    """
    out = np.full(p.shape, np.nan)
    known = np.isfinite(p)
    order = np.argsort(p[known])
    ranked = p[known][order] * len(order) / np.arange(1, len(order) + 1)
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum.accumulate(ranked[::-1])[::-1].clip(max=1)
    out[known] = adjusted
    return out
