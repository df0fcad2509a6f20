"""Thresholds: what a copy must keep to, from arguments, words such as `gradients=0.8`, or a file.

The file is TOML, with the names of the command's options as keys:

    max-disagreement = 0.02
    max-kl = 0.01
    min-db = 20

    [min]
    gradients = 0.8
    "mean:features" = 0.95
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import DataError, FormatError, first_line, nearest
from ..similarity.combinations import KERNELS, Kernel

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Quantity = Literal["disagreement", "kl", "js", "decibels", "score"]
Minima = Mapping[str, float] | Iterable[str] | str

NAMES: dict[str, Quantity] = {  # but for those of kernels
    "max-disagreement": "disagreement",
    "max-kl": "kl",
    "max-js": "js",
    "min-db": "decibels",
}
_MEAN = "mean:"
_NONE = (
    "no threshold was given, so there is nothing to check; give one or more of max-disagreement, "
    "max-kl, max-js, min-db and min, such as max-disagreement = 0.02 or min gradients=0.8"
)
_WORDS = "expected KERNEL=x or mean:KERNEL=x, such as gradients=0.8; found {!r}"
_RANGES: dict[Quantity, str] = {
    "disagreement": "above 0 and below 1, a share of samples (0.02 for 2 %)",
    "kl": "above 0, in nats",
    "js": "above 0, in nats",
    "decibels": "finite",
    "score": "above 0 and below 1, as scores of networks that differ at all do",
}


@dataclass(frozen=True)
class Threshold:
    """A limit for one quantity: the most that is allowed of a difference, or the least of a score.

    Scores and decibels are those of the worst layer, or with `mean` the mean over layers.
    """

    quantity: Quantity
    limit: float
    kernel: Kernel | None = None  # of a score
    mean: bool = False

    def __post_init__(self) -> None:
        x: Any = self.limit
        number = isinstance(x, int | float) and not isinstance(x, bool)
        good = number and math.isfinite(x)
        if self.quantity != "decibels":
            good = good and x > 0
        if self.quantity in ("disagreement", "score"):
            good = good and x < 1
        if not good:
            raise DataError(f"{self.name} must be {_RANGES[self.quantity]}; found {x!r}")
        object.__setattr__(self, "limit", float(x))

    @property
    def name(self) -> str:
        """What it is called in files and on the command line, without its limit."""
        if self.kernel is not None:
            return f"min {_MEAN if self.mean else ''}{self.kernel}"
        return next(name for name, quantity in NAMES.items() if quantity == self.quantity)

    @property
    def allows_at_most(self) -> bool:
        """Whether the limit is the most that is allowed; else it is the least."""
        return self.quantity in ("disagreement", "kl", "js")


def gathered(
    *,
    max_disagreement: float | None = None,
    max_kl: float | None = None,
    max_js: float | None = None,
    min_db: float | None = None,
    min: Minima | None = None,
    thresholds: str | os.PathLike[str] | None = None,
) -> tuple[Threshold, ...]:
    """All thresholds, each once: what is given replaces what the file says of the same."""
    given = zip(NAMES, (max_disagreement, max_kl, max_js, min_db), strict=True)
    own = [_of(name, x) for name, x in given if x is not None] + _minima(min)
    every = {each.name: each for each in ([] if thresholds is None else read(thresholds))}
    every |= {each.name: each for each in own}
    if not every:
        raise DataError(_NONE)
    return tuple(every.values())


def read(path: str | os.PathLike[str]) -> list[Threshold]:
    """The thresholds of a TOML file, or an error that names what is wrong with it."""
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FormatError(
            f"no file at {os.fspath(path)}; expected one with thresholds in TOML"
        ) from None
    except (OSError, ValueError) as error:
        raise FormatError(
            f"{os.fspath(path)} cannot be read as TOML ({first_line(error)}); expected lines such "
            "as max-disagreement = 0.02"
        ) from None
    unknown = [name for name in content if name not in (*NAMES, "min")]
    try:
        if unknown:
            raise DataError(
                f"no threshold is named {unknown[0]!r}; there are {', '.join(NAMES)} and the table "
                "[min]"
            )
        minima = content.get("min", {})
        if not isinstance(minima, Mapping):
            raise DataError(
                f"min must be a table of kernels, such as [min] with gradients = 0.8 below it; "
                f"found {minima!r}"
            )
        named = [_of(name, x) for name, x in content.items() if name != "min"]
        return named + _minima(minima)
    except DataError as error:
        raise FormatError(f"{os.fspath(path)}: {error}") from None


def _of(name: str, limit: Any) -> Threshold:
    return Threshold(NAMES[name], limit)


def _minima(given: Minima | None) -> list[Threshold]:
    """Thresholds of kernels, from a mapping or from words."""
    if given is None:
        return []
    if isinstance(given, Mapping):
        pairs = list(given.items())
    else:
        pairs = [_split(word) for word in ([given] if isinstance(given, str) else given)]
    found: dict[str, Threshold] = {}
    for name, limit in pairs:
        threshold = _score(name, limit)
        if threshold.name in found:
            raise DataError(f"{threshold.name} was given twice; give it once")
        found[threshold.name] = threshold
    return list(found.values())


def _split(word: Any) -> tuple[str, float]:
    name, equals, limit = str(word).partition("=")
    try:
        if not isinstance(word, str) or not equals:
            raise ValueError
        return name.strip(), float(limit)
    except ValueError:
        raise DataError(_WORDS.format(word)) from None


def _score(name: Any, limit: Any) -> Threshold:
    kernel = str(name).removeprefix(_MEAN)
    if kernel not in KERNELS:
        raise DataError(f"no kernel is named {kernel!r}; nearest: {nearest(kernel, KERNELS)}")
    return Threshold("score", limit, kernel, mean=kernel != name)
