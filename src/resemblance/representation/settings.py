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
    block: int  # samples in a block, after fitting it to the data
    blocks: int  # blocks kept at the most; 0 if none were
    max_dim: int | None  # wider layers were folded to this width before the buckets
    pool: str
    target: str  # "tempered", "labels", the name of a function, or "none" without gradients
    beta: float | None  # None unless target is "tempered"
    elementwise: bool
    unit: Literal["sample"] = "sample"  # what a row of a kernel is

    @property
    def gradients(self) -> bool:
        return self.target != "none"
