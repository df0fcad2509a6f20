"""The protocol of a similarity index, the registry of all of them, and `register_index`.

`SimilarityIndex` says how two kernels become a number and which estimators can have it. The rest is
the engine's: reading kernels, means over blocks, standard errors, refusals. What an index needs is
seen from what it gives:

- `score`, a function of two kernel matrices, is computed by `function_estimator`. With `prepare`,
  it is one of what each kernel was turned into, once for all comparisons of a layer.
- `pair_sums`, how sums over pairs of samples add up, is computed by `block_estimator`, with a
  chance level.
- `from_whole`, `from_blocks`, `from_buckets` are estimators of its own, such as from eigenvalues.

Built-in indices are the files of this folder. They are found by name and imported on first use, so
that the command can list them without importing torch.
"""

from __future__ import annotations

import functools
import importlib
import math
import pkgutil
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ...errors import DataError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

    from ...representation.notes import Note
    from ...representation.representation import Representation
    from ..block_estimator import LayerPairing
    from ..jackknife import Estimate
    from ..kernels import CompareConfig

Use = Literal["compare", "compare_all"]
Invariance = Literal["rotation", "scale", "permutation", "shift", "linear", "sample-scale"]
Score = Callable[["np.ndarray", "np.ndarray"], float]
BucketEstimator = Callable[
    ["Tensor", "Tensor", "Sequence[slice]", "tuple[int, int] | None"], "tuple[Tensor, Tensor]"
]
BlockEstimator = Callable[
    ["Representation", "Representation", "CompareConfig", "str | torch.device"], "Estimate"
]


@dataclass(frozen=True)
class PairSumRule:
    """How an index ⟨K1, K2⟩ / √(⟨K1, K1⟩⟨K2, K2⟩) adds up from sums over pairs of samples.

    Attributes:
        inner: ⟨K1, K2⟩ from nine sums over a block (`unbiased_inner_product`), its number of
            samples, the number of all samples (∞ for `population`), and whether kernels are
            centred.
        distances: which distances of samples the sums are over; None: over kernels.
        population: whether it estimates the value for the population, without the diagonal.
    """

    inner: Callable[[Tensor, int, float, bool], Tensor]
    distances: Literal["squared", "euclidean"] | None = None
    population: bool = False


class PreparedKernel(NamedTuple):
    """What an index needs of a kernel, computed once for all comparisons of a layer.

    Permuting the samples of one side, as the chance level does, is then a matter of indexing.
    """

    rows: tuple[Tensor, ...] = ()  # (n, r): a row for each sample
    squares: tuple[Tensor, ...] = ()  # (n, n): a row and a column for each sample

    def permuted(self, order: Tensor) -> PreparedKernel:
        """The same with the samples in another order."""
        return PreparedKernel(
            tuple(x[order] for x in self.rows),
            tuple(x[order][:, order] for x in self.squares),
        )


@dataclass(frozen=True)
class SimilarityIndex:
    """What an index is, what it needs, and where it is defined.

    Attributes:
        name: what `index=` takes.
        score: a function of two kernels over the same samples, as float64 arrays (n, n) that are
            centred if that was asked for, to a number. The larger, the more alike.
        prepare: what `score` takes instead of arrays, from a kernel (n, n) and the level below
            which its eigenvalues are the rounding of its entries.
        restrict: what is prepared of a kernel with some samples left out (a mask of those that
            stay, and whether the kernel was centred), where that is cheaper than to prepare again.
        symmetric: whether swapping the networks leaves a score as it is.
        invariances: what may be done to the features of one network, as `compare` centres them by
            default, without changing a score: a `rotation` of all units, one `scale`, a
            `permutation` of units, a `shift` of all samples, any invertible `linear` map of the
            units, a scale for each sample (`sample-scale`).
        centre: what `centre=None` means; None: for features alone.
        fewest: the smallest number of samples that it is defined for.
        transform: an increasing function that scores are put through at the end, on [0, 1].
        paired: whether sample i of one kernel must be sample i of the other.
        blocks: whether it can be had from blocks of samples, beyond the full Gram matrix.
        buckets: whether it can be had from bucket kernels (sketches).
        ratio: whether it can be had from blocks and the norms of all samples.
        jackknife: whether leaving out groups of samples gives `score` a standard error.
        without_errors: why the full Gram matrix has no standard error, without `jackknife`.
        uses: the functions that take it.
        bounds: the range of its scores, to which they are clamped.
        whole_samples: up to how many samples the full Gram matrix is used; None: wherever it is
            stored.
        prefers_buckets: whether buckets are more accurate than blocks of fewer samples.
        note: what to say of scores that are not of the full Gram matrix.
        pair_sums: how sums over pairs of samples add up.
        from_whole: an estimator from full Gram matrices.
        from_blocks: an estimator from blocks.
        from_buckets: an estimator from bucket kernels (L, M, M) of either side, groups of buckets,
            and the numbers of samples if they are sketches: scores, and those without each group.
        bucket_groups: at most so many groups of buckets are left out in turn.
    """

    name: str
    score: Callable[[Any, Any], Any] | None = None
    prepare: Callable[[Tensor, float], PreparedKernel] | None = None
    restrict: Callable[[PreparedKernel, Tensor, bool], PreparedKernel] | None = None
    symmetric: bool = True
    invariances: tuple[Invariance, ...] = ("rotation", "scale", "permutation", "shift")
    centre: bool | None = None
    fewest: int = 1
    transform: Callable[[np.ndarray], np.ndarray] | None = None
    paired: bool = True
    blocks: bool = True
    buckets: bool = False
    ratio: bool = False
    jackknife: bool = True
    without_errors: str = "was registered without a jackknife"
    uses: tuple[Use, ...] = ("compare",)
    bounds: tuple[float, float] = (0.0, 1.0)
    whole_samples: int | None = None
    prefers_buckets: bool = False
    note: Note | None = None
    pair_sums: PairSumRule | None = None
    from_whole: Callable[[LayerPairing], Estimate] | None = None
    from_blocks: BlockEstimator | None = None
    from_buckets: BucketEstimator | None = None
    bucket_groups: int = 32


_REGISTERED: dict[str, SimilarityIndex] = {}  # by users


def index_names() -> tuple[str, ...]:
    """The names of all indices: those of the files of this folder, then those of users."""
    return (*_built_in(), *_REGISTERED)


@functools.lru_cache(maxsize=1)
def _built_in() -> dict[str, str]:
    """The module of each built-in index."""
    here = importlib.import_module(__package__)
    files = sorted(module.name for module in pkgutil.iter_modules(here.__path__))
    return {file.replace("_", "-"): file for file in files if file != "registry"}


def get_index(name: str) -> SimilarityIndex:
    """The index of a name.

    Raises:
        DataError: if there is none of that name.
    """
    if name in _REGISTERED:
        return _REGISTERED[name]
    if name in _built_in():
        return _load(_built_in()[name])
    raise DataError(f"`index` must be one of {', '.join(index_names())}; found {name!r}")


@functools.cache
def _load(file: str) -> SimilarityIndex:
    found = importlib.import_module(f".{file}", __package__).INDEX
    assert isinstance(found, SimilarityIndex)
    return found


def is_registered(name: str) -> bool:
    """Whether a user registered the index, which is then no built-in one."""
    return name in _REGISTERED


def score_bounds(name: str) -> tuple[float, float]:
    """The range of an index; of one that is not registered here, that of all numbers."""
    return get_index(name).bounds if name in index_names() else (-math.inf, math.inf)


def register_index(
    name: str,
    score: Score,
    *,
    blocks: bool = False,
    jackknife: bool = False,
    paired: bool = True,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> None:
    """Add a similarity index of your own, which `compare` then takes as `index=name`.

    `compare` calls `score` once per pair of layers with the full Gram matrices, which a recording
    has for up to 1,024 samples. Beyond, it needs `blocks=True` and takes the mean over blocks of
    samples. Registering the same name again replaces your index. It is known to this process only;
    `Comparison.load` reads its results anywhere.

    Args:
        name: letters, digits, `-` and `_`; no built-in name.
        score: a function of two kernels over the same samples, as float64 NumPy arrays of shape
            (n, n), that returns one number: the larger, the more alike. The kernels are centred
            where `compare` centres them (`features`, or `centre=True`). It is not called for
            constant layers. NaN says that it is undefined; such blocks are left out of the mean.
        blocks: whether the mean of scores over blocks of samples estimates the score of all
            samples. Then larger recordings and tokens can be compared as well, with a standard
            error from a jackknife over blocks.
        jackknife: whether the score changes smoothly with the samples, so that leaving out groups
            of them gives a standard error for the full Gram matrix. It takes 32 more calls of
            `score` per pair of layers. Without it `stderr` is NaN there, and a note says why.
        paired: whether sample i of one kernel must be sample i of the other. If not, recordings of
            different samples are compared block by block, which needs `blocks=True`.
        bounds: the smallest and the largest score; scores and intervals are clamped to them.

    Raises:
        DataError: if the name is not one, or is a built-in index; if `score` is not a function; if
            the bounds are not two numbers in order.

    Example:
        >>> import numpy as np, torch, resemblance as rs
        >>> def rank_correlation(k1, k2):
        ...     above = np.triu_indices(len(k1), 1)
        ...     ranks = [k[above].argsort().argsort() for k in (k1, k2)]
        ...     return np.corrcoef(*ranks)[0, 1]
        >>> rs.register_index("rank-correlation", rank_correlation, blocks=True)
        >>> x = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
        >>> rep = rs.record_arrays(x, data_id="x")
        >>> found = rs.compare(rep, rep, kernel="features", index="rank-correlation")
        >>> float(found.scores[0, 0].round(6))
        1.0
    """
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise DataError(f"`name` must be made of letters, digits, - and _; found {name!r}")
    if name in _built_in():
        raise DataError(f"{name!r} is a built-in index; register yours under a different name")
    if not callable(score):
        raise DataError(f"`score` must be a function of two kernels; found {type(score).__name__}")
    numbers = isinstance(bounds, tuple) and all(isinstance(x, Real) for x in bounds)
    if not (numbers and len(bounds) == 2 and bounds[0] < bounds[1]):
        raise DataError(f"`bounds` must be two numbers, the smaller first; found {bounds!r}")
    _REGISTERED[name] = SimilarityIndex(
        name, score, paired=paired, blocks=blocks, jackknife=jackknife, bounds=bounds
    )
