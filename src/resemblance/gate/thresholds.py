"""Thresholds of a check, from arguments, words such as `gradients=0.8`, or a TOML file.

The file has the names of the command's options as keys:

    max-disagreement = 0.02
    max-kl = { mean = 0.01, p99 = 0.05 }
    min-kappa = 0.95
    min-db = 20
    min-neighbours = 0.9
    min-cosine = { p01 = 0.98 }

    [min]
    gradients = 0.8
    "mean:features" = 0.95
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ..errors import DataError, FormatError, close_matches, first_line
from ..similarity.kernels import KERNELS, Kernel

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


Quantity = Literal["disagreement", "kl", "js", "kappa", "decibels", "neighbours", "cosine", "score"]
ScoreLimits = Mapping[str, float] | Iterable[str] | str
DivergenceLimits = float | Mapping[str, float] | Iterable[str] | str
CosineLimits = Mapping[str, float] | Iterable[str] | str

QUANTITIES: dict[str, Quantity] = {  # but for those of kernels
    "max-disagreement": "disagreement",
    "max-kl": "kl",
    "max-js": "js",
    "min-kappa": "kappa",
    "min-db": "decibels",
    "min-neighbours": "neighbours",
    "min-cosine": "cosine",
}
_LIMIT_UNITS = {"kl": " nats", "js": " nats", "decibels": " dB"}
_QUANTITY_NAMES = {
    "disagreement": "disagreement",
    "kl": "KL",
    "js": "JS",
    "kappa": "Cohen's kappa",
    "neighbours": "nearest neighbours in common",
    "cosine": "cosine similarity",
}
_SCORE_NAMES = {"features": "feature CKA", "gradients": "gradient CKA"}
_KL_CAP = 1.0  # nats
_CAP_RANGE = (0, math.inf, "above 0 and finite, in nats")
_MEAN = "mean:"
_RANGES: dict[Quantity, tuple[float, float, str]] = {  # both ends excluded
    "disagreement": (0, 1, "above 0 and below 1, a share of samples (0.02 for 2 %)"),
    "kl": (0, math.inf, "above 0, in nats"),
    "js": (0, math.inf, "above 0, in nats"),
    "kappa": (0, 1, "above 0 and below 1"),
    "decibels": (-math.inf, math.inf, "finite"),
    "neighbours": (0, 1, "above 0 and below 1, a share of nearest neighbours"),
    "cosine": (-1, 1, "above -1 and below 1"),
    "score": (0, 1, "above 0 and below 1"),
}


@dataclass(frozen=True)
class Threshold:
    """A limit for one quantity: the most that is allowed of a difference, or the least of a score.

    Scores and decibels are those of the worst layer, or with `mean` the mean over layers.
    Divergences are means over samples, or percentiles: p99 = 0.05 allows 1 % of samples above 0.05.
    Cosines are percentiles: p01 = 0.98 allows 1 % of samples below 0.98.
    """

    quantity: Quantity
    limit: float
    kernel: Kernel | None = None  # of a score
    mean: bool = False
    percentile: float | None = None  # of a divergence or a cosine
    cap: float = math.inf  # nats, of the divergence of one sample in a mean

    def __post_init__(self) -> None:
        limit = _number_between(self.name, self.limit, *_RANGES[self.quantity])
        if limit >= self.cap:
            raise DataError(
                f"{self.name} must be below kl-cap, which is {self.cap:g}; found {limit:g}. Lower "
                "it, or raise kl-cap."
            )
        object.__setattr__(self, "limit", limit)

    @property
    def name(self) -> str:
        """What it is called in files and on the command line, without its limit."""
        if self.kernel is not None:
            return f"min {_MEAN if self.mean else ''}{self.kernel}"
        name = next(name for name, quantity in QUANTITIES.items() if quantity == self.quantity)
        if self.percentile is None:
            return name
        return f"{name} p{self.percentile:{'02g' if self.quantity == 'cosine' else 'g'}}"

    @property
    def subject(self) -> str:
        """What it is about, in a sentence."""
        if self.quantity == "decibels":
            return "SQNR of features at the worst layer"
        if self.kernel is not None:
            score = _SCORE_NAMES.get(self.kernel, f"{self.kernel} CKA")
            return f"mean {score}" if self.mean else f"{score} at the worst layer"
        what = _QUANTITY_NAMES[self.quantity]
        side = "below" if self.quantity == "cosine" else "above"
        return (
            what
            if self.percentile is None
            else f"share of samples with {what} {side} {self.limit_text}"
        )

    @property
    def limit_text(self) -> str:
        """The limit as it was given, with its unit."""
        if self.quantity == "disagreement":
            return f"{100 * self.limit:.6g} %"
        return f"{self.limit:.6g}{_LIMIT_UNITS.get(self.quantity, '')}"

    def value_text(self, x: float) -> str:
        """A measured value in the unit of the limit."""
        if self.quantity == "disagreement" or self.percentile is not None:
            return f"{100 * x:.{2 if x < 0.995 else 3}g} %"
        if self.quantity == "decibels":
            return "unchanged" if math.isinf(x) else f"{x:.1f} dB"
        if self.quantity in ("score", "kappa", "neighbours"):
            return format_near_one(x)
        return f"{x:.3g}{_LIMIT_UNITS[self.quantity]}"

    @property
    def allowed(self) -> float:
        """The limit of what is judged: of a percentile, the share of samples beyond its limit."""
        if self.percentile is None:
            return self.limit
        share = self.percentile / 100
        return round(share if self.quantity == "cosine" else 1 - share, 12)

    @property
    def allows_at_most(self) -> bool:
        """Whether the limit is the most that is allowed; else it is the least."""
        return self.quantity in ("disagreement", "kl", "js", "cosine")


def format_near_one(x: float) -> str:
    """A number up to 1, with two digits of 1 − x where that is small."""
    missing = 1 - x
    if missing < 5e-7:
        return "1"
    return f"{x:.{min(6, max(3, 1 - math.floor(math.log10(missing))))}f}"


def collect_thresholds(
    *,
    max_disagreement: float | None = None,
    max_kl: DivergenceLimits | None = None,
    max_js: DivergenceLimits | None = None,
    min_kappa: float | None = None,
    min_db: float | None = None,
    min_neighbours: float | None = None,
    min_cosine: CosineLimits | None = None,
    min: ScoreLimits | None = None,
    thresholds: str | os.PathLike[str] | None = None,
    kl_cap: float | None = None,
) -> tuple[Threshold, ...]:
    """All thresholds, each once: arguments replace what the file says about the same."""
    limits = (max_disagreement, max_kl, max_js, min_kappa, min_db, min_neighbours, min_cosine, min)
    named = zip((*QUANTITIES, "min"), limits, strict=True)
    own = _parse({name: given for name, given in named if given is not None})
    content: dict[str, Any] = {} if thresholds is None else _read_toml(thresholds)
    try:
        merged = _parse(content) | own
        cap = _number_between("kl-cap", content.get("kl-cap", _KL_CAP), *_CAP_RANGE)
    except DataError as error:
        raise FormatError(f"{os.fspath(thresholds or '')}: {error}") from None
    if kl_cap is not None:
        cap = _number_between("kl-cap", kl_cap, *_CAP_RANGE)
    if not merged:
        raise DataError(
            "no threshold was given; give one or more of "
            "`max_disagreement`, `max_kl`, `max_js`, `min_kappa`, `min_db`, `min_neighbours`, "
            "`min_cosine` and `min`, such as "
            "`max_disagreement=0.02` or `min='gradients=0.8'`"
        )
    return tuple(
        replace(each, cap=cap) if each.quantity == "kl" and each.percentile is None else each
        for each in merged.values()
    )


def _read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a file of thresholds says, by the names that there are."""
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FormatError(
            f"no file at {os.fspath(path)}; expected a TOML file with thresholds"
        ) from None
    except (OSError, ValueError) as error:
        raise FormatError(
            f"{os.fspath(path)} cannot be read as TOML ({first_line(error)}); expected lines such "
            "as max-disagreement = 0.02"
        ) from None
    for name in content:
        if name not in (*QUANTITIES, "min", "kl-cap"):
            raise FormatError(
                f"{os.fspath(path)}: no threshold is named {name!r}; there are "
                f"{', '.join(QUANTITIES)}, kl-cap and the table [min]"
            )
    if not isinstance(minima := content.get("min", {}), Mapping):
        raise FormatError(
            f"{os.fspath(path)}: min must be a table of kernels, such as [min] with "
            f"gradients = 0.8 below it; found {minima!r}"
        )
    return content


def _parse(limits: Mapping[str, Any]) -> dict[str, Threshold]:
    """Thresholds by name, from what was given for each quantity."""
    found: dict[str, Threshold] = {}
    for name, given in limits.items():
        for threshold in () if name == "kl-cap" else _thresholds_of(name, given):
            if threshold.name in found:
                raise DataError(f"{threshold.name} was given twice; omit one")
            found[threshold.name] = threshold
    return found


def _thresholds_of(name: str, given: Any) -> Iterator[Threshold]:
    """Thresholds of one quantity: divergences and scores can have several."""
    quantity = QUANTITIES.get(name, "score")
    if quantity == "score":
        message = "expected KERNEL=x or mean:KERNEL=x, such as gradients=0.8; found {!r}"
        for kernel, limit in _named_limits(given, message):
            of = str(kernel).removeprefix(_MEAN)
            if of not in KERNELS:
                raise DataError(f"no kernel is named {of!r}; nearest: {close_matches(of, KERNELS)}")
            yield Threshold(quantity, limit, of, mean=of != kernel)
    elif quantity in ("kl", "js", "cosine"):
        message = f"{name} must be x, mean=x or pNN=x, such as 0.01 or p99=0.05; found {{!r}}"
        if quantity == "cosine":
            message = f"{name} must be pNN=x, such as p01=0.98; found {{!r}}"
        for kind, limit in _named_limits(given, message, default="mean"):
            if quantity == "cosine" and kind == "mean":
                raise DataError(message.format(limit))
            percentile = re.fullmatch(r"p(\d{1,2}(?:\.\d+)?)", str(kind))
            if kind != "mean" and (percentile is None or not float(percentile[1])):
                raise DataError(message.format(f"{kind}={limit}"))
            yield Threshold(quantity, limit, percentile=percentile and float(percentile[1]))
    else:
        yield Threshold(quantity, given)


def _named_limits(given: Any, message: str, default: str = "") -> list[tuple[Any, Any]]:
    """Names and limits, from a mapping or from words such as `p99=0.05`."""
    if isinstance(given, Mapping):
        return list(given.items())
    words = given if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    pairs: list[tuple[Any, Any]] = []
    for word in words:
        if default and not isinstance(word, str):  # a number alone
            pairs.append((default, word))
            continue
        name, equals, limit = str(word).rpartition("=")
        try:
            pairs.append((name.strip() if equals else default, float(limit)))
        except ValueError:
            raise DataError(message.format(word)) from None
        if not pairs[-1][0]:
            raise DataError(message.format(word))
    return pairs


def _number_between(name: str, x: Any, low: float, high: float, range_text: str) -> float:
    """A number between two ends, both excluded."""
    if isinstance(x, bool) or not isinstance(x, int | float) or not low < x < high:
        raise DataError(f"{name} must be {range_text}; found {x!r}")
    return float(x)
