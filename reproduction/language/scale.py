"""How large the experiment is: the full one, and one small enough for a test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SIZES = ("small", "large")  # of causal language models
STAGES = (*SIZES, "masked")  # which are measured apart from each other


@dataclass(frozen=True)
class Size:
    """A network and how long it is trained."""

    layers: int
    width: int
    heads: int
    steps: int
    rate: float  # of learning, at the top of its cycle
    batch: int  # sequences


@dataclass(frozen=True)
class Scale:
    """Sizes of networks, numbers of steps and sequences. Everything else is the same in both."""

    networks: Mapping[str, Size] = field(
        default_factory=lambda: {
            "small": Size(layers=8, width=384, heads=6, steps=2000, rate=1e-3, batch=128),
            "large": Size(layers=12, width=640, heads=10, steps=1800, rate=6e-4, batch=64),
            "masked": Size(layers=6, width=384, heads=6, steps=1200, rate=1e-3, batch=128),
        }
    )
    context: int = 256  # bytes of a sequence
    tuned: float = 0.08  # of the usual steps, for a copy that is trained further
    tuned_rate: float = 0.2  # of the usual rate
    distilled: float = 0.4  # of the usual steps, for a student
    bits: tuple[int, ...] = (8, 6, 5, 4, 3)
    pruned: tuple[int, ...] = (10, 20, 35, 50, 65, 80)  # % of the weights
    rank: int = 8  # of an adapter
    sequences: int = 512  # held-out ones that networks are measured on
    block: int = 128  # sequences in a window of blocks
    one_block: int = 32  # the same of one token a sequence, which leaves blocks out, not sequences
    tokens: int = 16  # of a sequence
    masked_bits: tuple[int, ...] = (8, 4, 3)
    masked_pruned: tuple[int, ...] = (35, 65)


FULL = Scale()
QUICK = Scale(
    networks={
        "small": Size(layers=2, width=16, heads=2, steps=30, rate=5e-3, batch=16),
        "large": Size(layers=3, width=24, heads=2, steps=30, rate=5e-3, batch=16),
        "masked": Size(layers=2, width=16, heads=2, steps=30, rate=5e-3, batch=16),
    },
    context=32, tuned=0.3, bits=(8, 4), pruned=(80,), rank=2, sequences=64, block=32,
    one_block=8, tokens=4, masked_bits=(4,), masked_pruned=(35,),
)  # fmt: skip
