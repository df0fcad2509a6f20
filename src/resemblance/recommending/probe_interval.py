"""What a linear probe on a layer would reach on new samples, with an interval.

The leave-one-out accuracy of kernel ridge stands for it. Wilson's interval says how far that may
lie from the accuracy of such a fit on all samples of the source; that a probe is trained otherwise,
that other samples would train another one, and that the best of several layers was taken, widens
it by what `benchmarks/recommend.py` measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from ..errors import DataError

SHIFT = -0.10  # log odds of a trained probe's accuracy, less those of leave-one-out ridge: mean
SPREAD = 0.13  # and standard deviation, beyond what Wilson's interval explains


@dataclass(frozen=True)
class Expected:
    """An accuracy and the ends of its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.0%} ({self.low:.0%} to {self.high:.0%})"


def wilson(share: float, count: int, level: float = 0.95) -> tuple[float, float]:
    """The interval of a binomial share by Wilson's score, which stays within [0, 1].

    (p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n). Reference: Wilson 1927.

    >>> low, high = wilson(0.5, 100)
    >>> round(low, 3), round(high, 3)
    (0.404, 0.596)
    """
    _check(share, count, level)
    z = NormalDist().inv_cdf((1 + level) / 2)
    middle = share + z * z / (2 * count)
    far = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count**2))
    scale = 1 + z * z / count
    return max(0.0, (middle - far) / scale), min(1.0, (middle + far) / scale)


def expected_probe(
    share: float,
    count: int,
    level: float = 0.95,
    *,
    shift: float = SHIFT,
    spread: float = SPREAD,
) -> Expected:
    """The accuracy of a trained probe, from the leave-one-out accuracy `share` of `count` samples.

    In log odds: value = logit(share) + shift, and each end at the root of the squares of Wilson's
    distance and of z · spread. Bias: `shift` and `spread` are those of the benchmark's networks
    and of its probes; others may differ.

    >>> str(expected_probe(0.8, 400, shift=0.0, spread=0.0))
    '80% (76% to 84%)'
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    ends = wilson(share, count, level)
    share = min(max(share, 0.5 / count), 1 - 0.5 / count)  # whose log odds are finite
    centre = _logit(share)
    far = [math.hypot(abs(_logit(_inside(end, count)) - centre), z * spread) for end in ends]
    middle = centre + shift
    low, high = _share(middle - far[0]), _share(middle + far[1])
    return Expected(_share(middle), low, high)


def _inside(share: float, count: int) -> float:
    least = 0.01 / count
    return min(max(share, least), 1 - least)


def _logit(share: float) -> float:
    return math.log(share / (1 - share))


def _share(log_odds: float) -> float:
    return 1 / (1 + math.exp(-log_odds))


def _check(share: float, count: int, level: float) -> None:
    if not (0 <= share <= 1 and count >= 1 and 0 < level < 1):
        raise DataError(
            f"expected a share within [0, 1] of one sample or more, and a level between 0 and 1; "
            f"found share {share}, {count} samples, level {level}"
        )
