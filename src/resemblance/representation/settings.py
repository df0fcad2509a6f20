"""Settings: what must agree for two Representations to be comparable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Settings:
    """How a recording was made, as far as its numbers depend on it."""

    seed: int
    buckets: int  # 0 if none were kept
    per_sample: int
    block: int  # samples in a block, after fitting it to the data: of tokens, one a sequence
    blocks: int  # blocks kept at the most; 0 if none were
    max_dim: int | None  # wider layers were folded to this width before the buckets
    pool: str
    target: str  # "tempered", "labels", the name of a function, or "none" without gradients
    beta: float | None  # None unless target is "tempered"
    elementwise: bool
    unit: Literal["sample", "token"] = "sample"  # what a row of a kernel is
    tokens: int = 1  # rows of a sample: tokens drawn from a sequence

    @property
    def tokens_of_each(self) -> int | None:
        """Tokens drawn of each sequence; None where samples are no tokens."""
        return None if self.unit == "sample" else self.tokens

    @property
    def windows(self) -> int:
        """Runs of `block` samples whose blocks are kept: one block a run, or one for each token."""
        return max(1, self.blocks // self.tokens) if self.blocks else 0

    @property
    def gradients(self) -> bool:
        return self.target != "none"
