"""Behaviour of networks that return embeddings: neighbours, cosines and ranks of similarities.

Two recordings keep the embeddings of the same samples. Every second sample is a query and the
others are the pool, which is fixed: given the pool, queries are independent, so that a mean over
queries has a plain standard error, and bounds in the gate. `NeighbourLists` has, of each query, the
overlap of its k nearest neighbours in the pool by the two networks, and the rank correlation of its
similarities to the pool. Both are the same in any basis. `sample_cosines` compares the two
embeddings of a sample, which means something only in one basis (`share_basis`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .._utils.formatting import format_score, join_error, printable
from ..errors import MismatchError
from ..representation.embeddings import Embeddings
from ..representation.representation import Representation
from ..representation.schema import COUNT, ONE, REAL, TEXT, list_of, or_null
from .pairing import blocks_obstacle, incomplete_message
from .results import StoredResult

NEIGHBOURS = 10
_MAX_POOL_SHARE = 5  # the pool has this many times as many samples as neighbours are counted
_QUERIES_AT_ONCE = 512
_MAX_PAIRED = 1024  # queries of which each is paired with every other, for the chance level
_ROUND_OFF = 10  # decimals of a cosine, beyond which equal vectors differ by the order of sums
_PERMUTATIONS, _MAX_UNITS = 999, 1024  # to see whether units are in one order
_MEASURES = ("neighbours", "rank_correlation", "cosine")
_QUANTILES = ("cosine_p01", "cosine_p10", "cosine_p50")
_NUMBERS = (*_MEASURES, *(f"{name}_stderr" for name in _MEASURES), *_QUANTILES, "chance")


@dataclass(frozen=True, eq=False, repr=False)
class EmbeddingBehaviour(StoredResult):
    """How differently two networks embed the same samples.

    Every second sample is a query, the others are the pool. Standard errors are those of other
    queries, given this pool. `to_frame` has one row for each measure, with its value and stderr.

    Attributes:
        models: names of the two networks.
        samples: number of samples whose embeddings are compared.
        queries: how many of them are queries; the others are the pool.
        k: number of nearest neighbours of each query, by cosine.
        dimensions: dimensions of the embeddings of each network.
        neighbours: share of the k nearest neighbours that both networks have in common, the mean
            over queries.
        neighbours_stderr: standard error of that mean.
        chance: the same share where each query is paired with another one, as of unrelated
            embeddings that have the same samples near everything.
        rank_correlation: Spearman's correlation of a query's similarities to the pool by the two
            networks, the mean over queries.
        rank_correlation_stderr: standard error of that mean.
        cosine: cosine of the two embeddings of a sample, the mean over samples; None if a
            permutation test does not show that the networks have a common basis.
        cosine_stderr: standard error of that mean; None likewise.
        cosine_p01: 1st percentile of those cosines over samples; None likewise.
        cosine_p10: 10th percentile; None likewise.
        cosine_p50: median; None likewise.
    """

    models: tuple[str, str]
    samples: int
    queries: int
    k: int
    dimensions: tuple[int, int]
    neighbours: float
    neighbours_stderr: float
    chance: float
    rank_correlation: float
    rank_correlation_stderr: float
    cosine: float | None
    cosine_stderr: float | None
    cosine_p01: float | None
    cosine_p10: float | None
    cosine_p50: float | None

    _kind = "embedding_behaviour"
    _rules: ClassVar = {
        "models": list_of(TEXT, 2, 2),
        "samples": COUNT,
        "queries": COUNT,
        "k": ONE,
        "dimensions": list_of(ONE, 2, 2),
        **{name: or_null(REAL) for name in _NUMBERS},
    }

    def turned(self) -> EmbeddingBehaviour:
        """The same with the networks in the other order.

        Returns:
            The same numbers, with models and dimensions exchanged.
        """
        return replace(self, models=self.models[::-1], dimensions=self.dimensions[::-1])

    def _text(self) -> str:
        share = f"{100 * self.neighbours:.3g} % of neighbours in common"
        return f"{self.models[0]!r}, {self.models[1]!r}, {share}, {self.samples:,} samples"

    def _sentences(self) -> Iterator[str]:
        one, two = map(printable, self.models)
        out = (
            f"{one} and {two} have {100 * self.neighbours:.3g} % ± "
            f"{100 * self.neighbours_stderr:.2g} % of the {self.k} nearest neighbours in common "
            f"({self.queries:,} queries, {self.samples - self.queries:,} samples to choose from; "
            f"by chance {100 * self.chance:.2g} %). The rank correlation of their similarities is "
            f"{_with_error(self.rank_correlation, self.rank_correlation_stderr)}."
        )
        if self.cosine is not None and self.cosine_stderr is not None:
            out += (
                " The cosine similarity of a sample's two embeddings is "
                f"{_with_error(self.cosine, self.cosine_stderr)} on average, "
                f"{self.cosine_p01:.4f} at the 1st percentile."
            )
        else:
            out += (
                " The embeddings do not appear to share a basis, so their cosine similarities are "
                "not reported."
            )
        yield out

    def _columns(self) -> Mapping[str, Any]:
        ends = {"value": "", "stderr": "_stderr"}
        numbers = {key: [getattr(self, x + end) for x in _MEASURES] for key, end in ends.items()}
        return {"measure": _MEASURES, **numbers}


def _with_error(value: float, error: float) -> str:
    return join_error(format_score(value, error))


class NeighbourLists:
    """What two networks' embeddings say of every query, given the pool.

    Args:
        one: the embeddings of one network.
        two: those of the other, of the same samples.
        k: neighbours of each query; fewer in a pool of less than five times as many samples.
        ranks: whether to correlate the ranks of all similarities as well.
    """

    def __init__(
        self, one: Tensor, two: Tensor, k: int = NEIGHBOURS, *, ranks: bool = True
    ) -> None:
        pool = (len(one) + 1) // 2
        self.pool, self.queries = pool, len(one) // 2
        self.k = max(1, min(k, pool // _MAX_POOL_SHARE))
        lists, self.correlation = [], np.full(self.queries, np.nan)
        unit = [F.normalize(x.double(), dim=1) for x in (one, two)]  # rounding moved their lengths
        both = [(x[0::2].T, x[1::2]) for x in unit]
        for start in range(0, self.queries, _QUERIES_AT_ONCE):
            rows = slice(start, start + _QUERIES_AT_ONCE)
            similar = [(queries[rows] @ pool).numpy().round(_ROUND_OFF) for pool, queries in both]
            order = [np.argsort(-x, axis=1, kind="stable") for x in similar]
            lists.append(np.stack([x[:, : self.k] for x in order]))
            if ranks:
                each = [_average_ranks(*pair) for pair in zip(similar, order, strict=True)]
                self.correlation[rows] = _row_correlation(*each)
        self.neighbours = np.concatenate(lists, 1)  # (2, queries, k), places in the pool

    @functools.cached_property
    def overlap(self) -> np.ndarray:  # (queries,)
        """The share of each query's k nearest neighbours that both networks have in common."""
        one, two = self.neighbours
        return (one[:, :, None] == two[:, None, :]).any(2).mean(1)

    @functools.cached_property
    def paired(self) -> np.ndarray:  # (q, q), of at most 1,024 queries
        """The share that a query by one network and another query by the other have in common."""
        near = np.zeros((2, min(self.queries, _MAX_PAIRED), self.pool), np.float32)
        for matrix, places in zip(near, self.neighbours, strict=True):
            np.put_along_axis(matrix, places[: len(matrix)], 1.0, axis=1)
        return near[0] @ near[1].T / self.k

    @property
    def chance(self) -> float:
        """The mean overlap of different queries; NaN of a single one."""
        paired = self.paired
        different = paired.size - len(paired)
        return float(paired.sum() - paired.trace()) / different if different else float("nan")


def _average_ranks(values: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Ranks along rows from the largest on, equal values having the mean of their ranks."""
    sorted_ = np.take_along_axis(values, order, 1)
    new = np.ones(values.shape, bool)
    new[:, 1:] = sorted_[:, 1:] != sorted_[:, :-1]
    places = np.arange(values.shape[1], dtype=float)
    if new.all():
        mean = np.broadcast_to(places, values.shape)
    else:
        run = (new.cumsum(1) - 1) + values.shape[1] * np.arange(len(values))[:, None]
        sums = np.bincount(run.ravel(), np.tile(places, len(values)), minlength=values.size)
        counts = np.bincount(run.ravel(), minlength=values.size)
        mean = (sums / counts.clip(min=1))[run]
    ranks = np.empty(values.shape)
    np.put_along_axis(ranks, order, mean, axis=1)
    return ranks


def _row_correlation(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """Pearson's correlation of each row; 1 of two constant ones, 0 of a constant and another."""
    one, two = (x - x.mean(1, keepdims=True) for x in (one, two))
    norms = np.sqrt((one**2).sum(1) * (two**2).sum(1))
    constant = ~one.any(1) & ~two.any(1)
    return np.where(norms > 0, (one * two).sum(1) / np.where(norms > 0, norms, 1.0), constant)


def sample_cosines(one: Tensor, two: Tensor) -> np.ndarray:  # (rows,)
    """The cosine of the two embeddings of each sample; 1 of two zero vectors."""
    one, two = one.double(), two.double()
    lengths = torch.linalg.vector_norm(one, dim=1) * torch.linalg.vector_norm(two, dim=1)
    neither = ~one.any(1) & ~two.any(1)
    cosine = (one * two).sum(1) / lengths.clamp_min(torch.finfo(torch.float64).tiny)
    return torch.where(neither, 1.0, cosine).numpy()


def share_basis(one: Tensor, two: Tensor) -> bool:
    """Whether unit i of one network corresponds to unit i of the other, for all i.

    Networks that were trained apart number their units in any order, and those of a rotated copy
    correspond to none. The cosine of all centred embeddings must exceed that of 999 random orders
    of the units, so that unrelated networks pass once in a thousand times. At most 1,024 units are
    read.
    """
    if one.shape[1] != two.shape[1]:
        return False
    units = torch.arange(one.shape[1])[:: -(-one.shape[1] // _MAX_UNITS)]
    a, b = (x[:, units].double() for x in (one, two))
    inner = ((a - a.mean(0)).T @ (b - b.mean(0))).numpy()
    generator, rows = np.random.default_rng(0), np.arange(len(units))
    orders = generator.permuted(np.tile(rows, (_PERMUTATIONS, 1)), axis=1)
    return bool(inner.trace() > inner[rows, orders].sum(1).max())


def embedding_behaviour(a: Representation, b: Representation) -> EmbeddingBehaviour:
    """How differently two networks embed the samples that both were recorded on."""
    one, two = (x.vectors for x in comparable_embeddings(a, b))
    lists, numbers = NeighbourLists(one, two), dict[str, Any]()
    values = {"neighbours": lists.overlap, "rank_correlation": lists.correlation}
    cosines = sample_cosines(one, two) if share_basis(one, two) else None
    for name, x in {**values, "cosine": cosines}.items():
        numbers[name] = None if x is None else float(x.mean())
        numbers[f"{name}_stderr"] = None if x is None else _standard_error(x)
    for name in _QUANTILES:
        share = int(name[-2:]) / 100
        numbers[name] = None if cosines is None else float(np.quantile(cosines, share))
    return EmbeddingBehaviour(
        models=(a.name, b.name),
        samples=len(one),
        queries=lists.queries,
        k=lists.k,
        dimensions=(one.shape[1], two.shape[1]),
        chance=lists.chance,
        **numbers,
    )


def _standard_error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else float("nan")


def comparable_embeddings(a: Representation, b: Representation) -> tuple[Embeddings, Embeddings]:
    """The embeddings of two networks, or an error that says why they cannot be compared."""
    if (why := embeddings_obstacle(a, b)) is not None:
        raise MismatchError(
            f"the embeddings of {a.name!r} and {b.name!r} cannot be compared: {why}"
        )
    assert a.embeddings is not None
    assert b.embeddings is not None
    return a.embeddings, b.embeddings


def embeddings_obstacle(a: Representation, b: Representation) -> str | None:
    """Why the embeddings of two networks cannot be compared, or None if they can."""
    rows = []
    for rep in (a, b):
        if not rep.complete:
            return incomplete_message(rep)
        if rep.predictions is not None:
            return f'{rep.name!r} predicts classes or labels; record it again with `logits="none"`'
        if rep.embeddings is None:
            return (
                f"{rep.name!r} has none: its file is from before they were kept, or it was "
                "recorded without its outputs, or they are not one vector a sample; record it "
                'again with `logits="none"`'
            )
        rows.append(rep.embeddings.rows)
    if (why := blocks_obstacle(a, b)) is not None:
        return why
    if rows[0] < 2:
        return "a single sample has no neighbours"
    return None if rows[0] == rows[1] else "they are of different samples"
