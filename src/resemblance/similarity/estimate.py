"""What every estimator gives: scores with their errors, and on what they rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from . import error_bars


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
    n_eff: tuple[np.ndarray, ...] | None = None  # samples that carry each row's and column's kernel
    effective_blocks: np.ndarray | None = None  # that carry the variance of each score

    @staticmethod
    def of(
        scores: Tensor,
        stderr: Tensor | Sequence[Tensor],
        alive: Iterable[Tensor],
        chance: Iterable[Tensor] = (),
        *,
        low: float = 0.0,
        n_eff: Iterable[Tensor] | None = None,
        effective_blocks: Tensor | None = None,
    ) -> Estimate:
        """An estimate from tensors on any device, with scores kept in [low, 1].

        Instead of standard errors come the deviations that they are made of, if known.
        """
        score, *levels = (x.clamp(low, 1.0).cpu().numpy() for x in (scores, *chance))
        lives = tuple(x.cpu().numpy() for x in alive)
        mean, high = levels or (None, None)
        found: dict[str, np.ndarray] = {}
        if not isinstance(stderr, Tensor):
            found["replicates"] = error_bars.replicates(scores, stderr).cpu().numpy()
            stderr, df = error_bars.standard_error(stderr)
            found["df"] = df.cpu().numpy()
        if effective_blocks is not None:
            found["effective_blocks"] = effective_blocks.cpu().numpy()
        carried = None if n_eff is None else tuple(x.cpu().numpy() for x in n_eff)
        error = stderr.cpu().numpy()
        return Estimate(score, error, lives, mean, high, n_eff=carried, **found)

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
            None if self.n_eff is None else (self.n_eff[0], cut(self.n_eff[1])),
            cut(self.effective_blocks),
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
        for name in ("scores", "stderr", "chance", "chance_high", "df", "replicates"):
            mine, other = getattr(self, name), getattr(part, name)
            if mine is not None and other is not None:
                changed[name] = mine.copy()
                changed[name][at] = other
        return replace(self, **changed)
