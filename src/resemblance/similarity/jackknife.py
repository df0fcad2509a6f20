"""Standard errors: the jackknife, effective sample sizes, and where errors cannot be trusted.

An `Estimate` is scores with their errors.

A score's *deviations* are its changes when one part (a block, a group of samples) is left out,
scaled so that their squares add up to the variance. They give the standard error, its degrees of
freedom, and Student's t for the interval: where a few parts dominate a score, its standard error is
itself uncertain and the interval wider.

Tokens of one sequence are not independent. With `unit="token"`, groups of whole sequences are left
out, with all of their tokens, of which each block of a window holds one per sequence.

Too few effective samples (`n_eff`) or blocks make a standard error too small: other samples would
move the score by more than the recorded ones can show. The notes on that are made here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._ops import packing
from ..errors import DataError
from ..representation.layer import Blocks, Layer
from ..representation.notes import Note, make_note
from ..representation.representation import Representation
from .indices.registry import get_index
from .pair_statistics import ChanceLevels, gamma_tail

if TYPE_CHECKING:
    from .comparison import KernelComparison
    from .kernels import CompareConfig

# Up to these samples a standard error is about new samples, beyond that about those recorded.
FULL_GRAM_SAMPLES = 1024


def jackknife_deviations(scores: Tensor) -> Tensor:  # (k, ...) -> (k, ...)
    """The deviations of a jackknife: from the scores with each of k parts left out."""
    k = len(scores)  # of a single part nothing is left, whose score is NaN, as is its error
    return (scores - scores.mean(0)) * ((k - 1) / k) ** 0.5


def jackknife_error(scores: Tensor) -> Tensor:  # (k, ...) -> (...)
    """Standard error from the scores with each block left out."""
    return jackknife_deviations(scores).square().sum(0).sqrt()


def standard_error(deviations: Sequence[Tensor]) -> tuple[Tensor, Tensor]:  # each (k, ...)
    """Standard error and degrees of freedom of a score, from one or more sets of deviations.

    Satterthwaite: 2V² / Var V, with the variance of a sum of k squares seen in their spread. For
    one set that is 2k / (kurtosis − 1), k for normal deviations and few where a few parts carry
    all. Two thirds of it are taken, as k parts show less of a heavy tail than there is; never more
    than k − 1, nor less than one.
    """
    squares = [x.square() for x in deviations]
    variance = torch.stack([x.sum(0) for x in squares]).sum(0)
    spread = torch.stack([len(x) * x.var(0, correction=0) for x in squares]).sum(0)
    most = max(1, max(len(x) for x in deviations) - 1)
    df = (2 / 3 * 2 * variance**2 / spread).nan_to_num(most).clamp(1, most)
    return variance.sqrt(), df


def jackknife_replicates(score: Tensor, deviations: Sequence[Tensor]) -> Tensor:  # (m, ...)
    """Scores with a part left out, of which the jackknife makes the same standard error.

    Each set of deviations adds up to zero.
    """
    every = torch.cat(list(deviations))
    return score + every * (len(every) / max(1, len(every) - 1)) ** 0.5


def effective_number(shares: Tensor) -> Tensor:  # (k, ...) -> (...)
    """How many of k parts carry a sum: (Σ|x|)² / Σx², k for equal parts and 1 for a single one.

    >>> float(effective_number(torch.tensor([1.0, 1.0, 1.0, 0.0])))
    3.0
    """
    return shares.abs().sum(0) ** 2 / shares.square().sum(0)


class EffectiveSamples:
    """How much of a kernel each sample carries; a sequence, all that its tokens do."""

    def __init__(self) -> None:
        self._windows: dict[int, Tensor] = {}  # (L, n)

    def add(self, windows: Sequence[int], diagonals: Tensor) -> None:  # (g, L, n)
        """Take in the diagonals of blocks, each of a window of samples."""
        for window, diagonal in zip(windows, diagonals, strict=True):
            self._windows[window] = self._windows.get(window, 0) + diagonal

    def n_eff(self) -> Tensor:  # (L,)
        """How many samples, or sequences, carry the kernels of all windows."""
        return effective_number(torch.cat(list(self._windows.values()), 1).T)


def student_t(level: float, df: np.ndarray) -> np.ndarray:
    """How many standard errors on either side hold a share `level` of Student's t distribution.

    >>> [round(float(t), 3) for t in student_t(0.95, np.array([1.0, 10.0, 63.0]))]
    [12.706, 2.228, 1.998]
    """
    from scipy.special import stdtrit

    return stdtrit(df, (1 + level) / 2)


def student_interval(
    value: np.ndarray, stderr: np.ndarray, df: np.ndarray, level: float
) -> tuple[np.ndarray, np.ndarray]:
    """The lower and upper ends of intervals by Student's t."""
    if not (isinstance(level, Real) and 0 < level < 1):
        raise DataError(f"`level` must lie between 0 and 1; found {level!r}")
    wide = student_t(level, df) * stderr
    return value - wide, value + wide


def student_tail(t: np.ndarray, df: np.ndarray) -> np.ndarray:
    """The share of Student's t distribution that lies above t.

    >>> [round(float(p), 4) for p in student_tail(np.array([0.0, 2.228, -1.0]), np.full(3, 10.0))]
    [0.5, 0.025, 0.8296]
    """
    from scipy.special import stdtr

    return stdtr(df, -t)


_MIN_GROUPS = 20  # groups of sequences, if there are as many
_MIN_BLOCK_ROWS = 4  # that a centred estimate needs of a block


class SequenceGroup(NamedTuple):
    """Sequences that are left out together."""

    blocks: slice  # of their window
    size: int  # rows of each of those
    rest: np.ndarray  # (m,) rows of those blocks that stay; none if a window goes as a whole


def sequence_groups(rep: Representation, most: int | None = None) -> list[SequenceGroup]:
    """At least twenty groups of sequences, none across windows; of the first `most` blocks."""
    tokens, sizes = rep.settings.tokens, rep.block_sizes[:most]
    windows = [(start, sizes[start]) for start in range(0, len(sizes), tokens)]
    each = -(-_MIN_GROUPS // len(windows))
    out = []
    for start, n in windows:
        for gone in np.array_split(np.arange(n), min(each, n)):
            rest = np.setdiff1d(np.arange(n), gone)
            kept = rest if len(rest) >= _MIN_BLOCK_ROWS else rest[:0]
            out.append(SequenceGroup(slice(start, start + tokens), n, kept))
    return out


def window_without_group(rep: Representation, group: SequenceGroup) -> Representation:
    """A Representation of a group's window alone, with the rows that stay."""
    tokens = rep.settings.tokens
    return replace(
        rep,
        layers=tuple(layer_without_group(layer, group) for layer in rep),
        block_sizes=(len(group.rest),) * tokens,
        block_numbers=rep.block_numbers[group.blocks],
        block_hashes=None,
        label_hashes=None,
    )


def layer_without_group(layer: Layer, group: SequenceGroup) -> Layer:
    """A layer with a group's window alone, with the rows that stay."""
    rows = torch.from_numpy(group.rest)
    i, j = packing.lower_triangle(len(rows))
    high, low = rows[i], rows[j]  # rows ascend
    entries = high * (high - 1) // 2 + low
    parts = {}
    for kind in layer.kinds:
        recorded = layer.recorded(kind)
        if recorded.blocks is not None:
            packed = recorded.blocks
            offset = None if packed.offset is None else packed.offset[group.blocks][:, rows]
            kept = Blocks(
                packed.triangle[group.blocks][:, entries],
                packed.diagonal[group.blocks][:, rows],
                offset,
            )
            parts[kind] = replace(recorded, blocks=kept)
    return replace(layer, **parts)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Estimate:
    """Scores of rows × columns, their standard errors, and the score of unrelated samples."""

    scores: np.ndarray
    stderr: np.ndarray
    alive: tuple[np.ndarray, ...]  # rows and columns that are not constant on these data
    chance: np.ndarray | None = None  # mean under permuted pairing
    chance_high: np.ndarray | None = None  # 95 % quantile
    df: np.ndarray | None = None  # degrees of freedom of the standard errors
    replicates: np.ndarray | None = None  # (groups, rows, columns): with a group left out
    p_value: np.ndarray | None = None  # that a score under permuted pairing is as high
    skew: np.ndarray | None = None  # of scores under permuted pairing
    permuted_best: np.ndarray | None = None  # (permutations,) the largest score of the table
    n_eff: tuple[np.ndarray, ...] | None = None  # samples that carry each row's and column's kernel
    effective_blocks: np.ndarray | None = None  # that carry the variance of each score

    @staticmethod
    def of(
        scores: Tensor,
        stderr: Tensor | Sequence[Tensor],
        alive: Iterable[Tensor],
        chance: ChanceLevels | None = None,
        *,
        low: float = 0.0,
        high: float = 1.0,
        n_eff: Iterable[Tensor] | None = None,
        effective_blocks: Tensor | None = None,
    ) -> Estimate:
        """An estimate from tensors on any device, with scores clamped to [low, high].

        Instead of standard errors come the deviations that they are made of, if known.
        """
        score, lives = scores.clamp(low, high).cpu().numpy(), tuple(x.cpu().numpy() for x in alive)
        found: dict[str, np.ndarray] = {}
        if chance is not None:
            found["chance"] = chance.mean.clamp(low, high).cpu().numpy()
            found["chance_high"] = chance.high.clamp(low, high).cpu().numpy()
            found["skew"] = chance.skew.cpu().numpy()
            found["p_value"] = gamma_tail(scores, chance).cpu().numpy()
        if not isinstance(stderr, Tensor):
            found["replicates"] = jackknife_replicates(scores, stderr).cpu().numpy()
            stderr, df = standard_error(stderr)
            found["df"] = df.cpu().numpy()
        if effective_blocks is not None:
            found["effective_blocks"] = effective_blocks.cpu().numpy()
        carried = None if n_eff is None else tuple(x.cpu().numpy() for x in n_eff)
        error = stderr.cpu().numpy()
        return Estimate(score, error, lives, n_eff=carried, **found)

    def transformed(self, function: Callable[[np.ndarray], np.ndarray]) -> Estimate:
        """The same of an increasing function of scores in [0, 1]; errors by the jackknife of it.

        The chance level's quantile is that of the function, its mean is the function of the mean.
        """

        def of(x: np.ndarray | None) -> Any:
            return None if x is None else function(x.clip(0, 1))

        changed = {name: of(getattr(self, name)) for name in ("chance", "chance_high")}
        if (replicates := of(self.replicates)) is not None:
            changed["replicates"] = replicates
            changed["stderr"] = jackknife_error(torch.from_numpy(replicates)).numpy()
        return replace(self, scores=function(self.scores), **changed)

    def of_columns(self, which: slice) -> Estimate:
        """The same for some of the columns."""

        def cut(x: Any) -> Any:
            return None if x is None else x[..., which]

        return Estimate(
            cut(self.scores),
            cut(self.stderr),
            (self.alive[0], cut(self.alive[1])),
            cut(self.chance),
            cut(self.chance_high),
            cut(self.df),
            cut(self.replicates),
            cut(self.p_value),
            cut(self.skew),
            n_eff=None if self.n_eff is None else (self.n_eff[0], cut(self.n_eff[1])),
            effective_blocks=cut(self.effective_blocks),
        )

    def with_errors(self, stderr: Tensor) -> Estimate:
        """The same with other standard errors, to which replicates are scaled."""
        error = stderr.cpu().numpy()
        if self.replicates is None:
            return replace(self, stderr=error)
        centre = self.replicates.mean(0)
        with np.errstate(divide="ignore", invalid="ignore"):
            scale = np.where(self.stderr > 0, error / self.stderr, 0.0)
        return replace(self, stderr=error, replicates=centre + (self.replicates - centre) * scale)

    def with_part(self, part: Estimate, rows: np.ndarray, columns: np.ndarray) -> Estimate:
        """The same with some rows and columns (masks) from another estimate."""
        at = (..., *np.ix_(rows, columns))
        changed = {}
        names = ("scores", "stderr", "chance", "chance_high", "df", "replicates", "p_value")
        for name in names:
            mine, other = getattr(self, name), getattr(part, name)
            if mine is not None and other is not None:
                changed[name] = mine.copy()
                changed[name][at] = other
        return replace(self, **changed)


# -- whether standard errors can be trusted --

_MIN_EFFECTIVE = {True: 100, False: 300}  # samples; whether the kernel of all is known
_MIN_BLOCKS = 12
_SMALL_BLOCK = 16  # samples
_IDENTICAL, _IDENTICAL_FLOAT32 = 1e-9, 1e-6  # 1 less a score: round-off, of a layer and itself


def unreliable_note(a: Representation, found: Estimate) -> Note | None:
    """What to say where too few samples, or blocks of them, carry a score to judge its error."""
    doubtful = are_unreliable(a, found)
    if found.n_eff is None or not doubtful.any():
        return None
    rows, columns = found.n_eff
    carried = _carried(np.minimum(rows[:, None], columns[None, :])[doubtful], a, sum(a.block_sizes))
    return make_note(
        "unreliable-errors", count=int(doubtful.sum()), scores=doubtful.size, **carried
    )


def are_unreliable(
    a: Representation, found: Estimate | KernelComparison
) -> np.ndarray:  # (rows, columns)
    """Of which scores the errors cannot be trusted: too few samples, or blocks, carry them."""
    if found.n_eff is None:
        return np.zeros(found.scores.shape, dtype=bool)
    limit = min_effective_samples(a, sum(a.block_sizes) // a.settings.tokens)
    doubtful: np.ndarray = np.minimum(found.n_eff[0][:, None], found.n_eff[1][None, :]) < limit
    if found.effective_blocks is not None:
        doubtful |= found.effective_blocks < min(_MIN_BLOCKS, len(a.block_sizes) / 4)
    return doubtful & np.isfinite(found.scores) & (found.scores < 1 - _IDENTICAL)


def min_effective_samples(a: Representation, held: int) -> float:
    """The n_eff that a kernel of so many samples, or sequences, must have to judge its error by.

    A hundred where the kernel of all is known, else three hundred, or a seventh of all if that is
    less; of very few samples, one must not carry nearly all.
    """
    few = a.settings.tokens > 1 or a.samples <= FULL_GRAM_SAMPLES
    return max(1.5, min(_MIN_EFFECTIVE[few], held / 7))


def samples_to_trust_errors(a: Representation, n_eff: float) -> float:
    """How many samples, or sequences, have the n_eff that errors need, if it grows with them.

    For a kernel with fewer: beyond 1,024 samples, of which parts alone are known, more are needed.
    """
    held = sum(a.block_sizes) // a.settings.tokens
    needed = held * _MIN_EFFECTIVE[True] / n_eff
    most = math.inf if a.settings.tokens > 1 else FULL_GRAM_SAMPLES
    return needed if max(needed, held) <= most else held * _MIN_EFFECTIVE[False] / n_eff


def unreliable_networks_note(
    reps: Sequence[Representation],
    n_eff: np.ndarray,  # (networks, layers)
    scores: np.ndarray,  # (networks, networks), in single precision
    samples: int,
) -> Note | None:
    """What to say where a few samples dominate a kernel, so that errors may be too small."""
    held = samples // reps[0].settings.tokens
    differ = (scores < 1 - _IDENTICAL_FLOAT32).any(1, keepdims=True)
    doubtful: np.ndarray = (n_eff < min_effective_samples(reps[0], held)) & differ
    if not doubtful.any():
        return None
    models = [rep.name for rep, few in zip(reps, doubtful, strict=True) if few.any()]
    carried = _carried(n_eff[doubtful], reps[0], samples)
    return make_note("unreliable-networks", models=models, **carried)


def _carried(n_eff: np.ndarray, rep: Representation, rows: int) -> dict[str, Any]:
    """The effective sample size, of how many samples, as notes say it."""
    tokens = rep.settings.tokens
    unit = "samples" if tokens == 1 else "sequences"
    return {"n_eff": float(n_eff.min()), "unit": unit, "samples": rows // tokens}


def small_blocks_note(a: Representation, asked: CompareConfig) -> Note | None:
    """What to say where levelling leaves too little of small blocks to judge errors by."""
    parts = a.samples > FULL_GRAM_SAMPLES and asked.estimator in ("blocks", "ratio")
    small = max(a.block_sizes, default=_SMALL_BLOCK) < _SMALL_BLOCK
    rule = get_index(asked.index).pair_sums
    if not (parts and small and asked.centre and rule and not rule.population):
        return None
    return make_note("small-blocks", block=max(a.block_sizes), enough=_SMALL_BLOCK)
