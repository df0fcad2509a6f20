"""Whether error bars can be trusted, and what to say where they cannot.

No estimate of an error is better than the samples that carry a score: where few do, others would
move it by more than those at hand can show.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..representation.representation import Representation
from . import block_estimates
from .combinations import Question
from .comparison import Comparison
from .estimate import Estimate

_FEWEST_EFFECTIVE = {True: 100, False: 300}  # samples; whether the kernel of all is known
_FEWEST_BLOCKS = 12
_SMALL_BLOCK = 16  # samples
_SMALL_BLOCKS = (
    "error bars of centred scores from blocks of {} samples are too short; record with {} samples "
    "in a block, or more"
)
_SAME, _SAME_SINGLE = 1e-9, 1e-6  # 1 less a score: round-off, of a layer and itself


def untrusted(a: Representation, found: Estimate) -> list[str]:
    """What to say where too few samples, or blocks of them, carry a score to judge its error."""
    if found.n_eff is None:
        return []
    tokens = a.settings.tokens
    held = sum(a.block_sizes) // tokens  # samples, or sequences
    rows, columns = found.n_eff
    carried = np.minimum(rows[:, None], columns[None, :])
    doubtful = are_doubtful(a, found)
    if not doubtful.any():
        return []
    how_many = (
        f"{doubtful.sum()} of {doubtful.size} error bars cannot be trusted: their kernels are"
    )
    return [f"{how_many} {_carried_by(carried[doubtful].min(), held, tokens)}"]


def are_doubtful(a: Representation, found: Estimate | Comparison) -> np.ndarray:  # (rows, columns)
    """Of which scores the errors cannot be trusted: too few samples, or blocks, carry them."""
    if found.n_eff is None:
        return np.zeros(found.scores.shape, dtype=bool)
    limit = fewest_effective(a, sum(a.block_sizes) // a.settings.tokens)
    doubtful: np.ndarray = np.minimum(found.n_eff[0][:, None], found.n_eff[1][None, :]) < limit
    if found.effective_blocks is not None:
        doubtful |= found.effective_blocks < min(_FEWEST_BLOCKS, len(a.block_sizes) / 4)
    return doubtful & np.isfinite(found.scores) & (found.scores < 1 - _SAME)


def fewest_effective(a: Representation, held: int) -> float:
    """The n_eff that a kernel of so many samples, or sequences, must have to judge its error by.

    A hundred where the kernel of all is known, else three hundred, or a seventh of all if that is
    less; of very few samples, one must not carry nearly all.
    """
    few = a.settings.tokens > 1 or a.samples <= block_estimates.FEW
    return max(1.5, min(_FEWEST_EFFECTIVE[few], held / 7))


def untrusted_of_many(
    reps: Sequence[Representation],
    n_eff: np.ndarray,  # (networks, layers)
    scores: np.ndarray,  # (networks, networks), in single precision
    samples: int,
) -> str | None:
    """What to say where too few samples carry kernels to judge errors by."""
    tokens = reps[0].settings.tokens
    held = samples // tokens
    differ = (scores < 1 - _SAME_SINGLE).any(1, keepdims=True)
    doubtful: np.ndarray = (n_eff < fewest_effective(reps[0], held)) & differ
    if not doubtful.any():
        return None
    names = [repr(rep.name) for rep, few in zip(reps, doubtful, strict=True) if few.any()]
    some = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    carried = _carried_by(n_eff[doubtful].min(), held, tokens)
    return f"some error bars cannot be trusted: kernels of {some} are {carried}"


def _carried_by(n_eff: float, held: int, tokens: int) -> str:
    what = "samples" if tokens == 1 else "sequences"
    return (
        f"carried by the equivalent of {n_eff:.0f} {what} (n_eff) of the {held:,} in them. Record "
        f"more {what}, or gradients with another beta, which sets how unequal samples are"
    )


def of_small_blocks(a: Representation, asked: Question) -> list[str]:
    """What to say where levelling leaves too little of small blocks to judge errors by."""
    parts = a.samples > block_estimates.FEW and asked.estimator in ("blocks", "ratio")
    small = max(a.block_sizes, default=_SMALL_BLOCK) < _SMALL_BLOCK
    if not (parts and small and asked.centre and asked.index in ("cka", "rsa")):
        return []
    return [_SMALL_BLOCKS.format(max(a.block_sizes), _SMALL_BLOCK)]
