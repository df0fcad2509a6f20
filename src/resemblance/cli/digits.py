"""Numbers as people read them: as many digits as their error calls for, and as they need to differ
from 1 or from 0."""

from __future__ import annotations

import math

_MOST = 6  # decimals
_USUAL = 3  # where no error says how many
_FIXED = 5  # decimals, up to which quantities are written without an exponent
_ALIKE = 1e-9  # 1 less a score: what float32 and packing leave of a layer and itself
_NO_ERROR = 1e-7  # of such a score: what packing leaves of none
NONE = "–"  # in place of a number that is not there


def score(value: float, error: float = math.nan, *, significant: int = 2) -> tuple[str, str]:
    """A similarity and its error, which may be blank: so many digits of the error, of six decimals.

    A score below 1 is never rounded to 1.

    >>> score(0.8741, 0.0123), score(0.99996, 0.0000124, significant=1), score(1.0, 0.0)
    (('0.874', '0.012'), ('0.99996', '0.00001'), ('1', ''))
    >>> score(1 - 7e-8, 2e-8), score(0.5), score(math.nan)
    (('1−7e-8', '2e-8'), ('0.500', ''), ('–', ''))
    """
    if not math.isfinite(value):
        return NONE, ""
    known = math.isfinite(error)
    if abs(1 - value) <= _ALIKE and not (known and error > _NO_ERROR):
        return "1", ""
    decimals = max(2, _decimals(error, significant)) if known and error > 0 else _USUAL
    below = 1 - value
    if below > _ALIKE:
        decimals = max(decimals, math.ceil(-math.log10(below)))
    decimals = min(decimals, _MOST)
    text = f"{value:.{decimals}f}"
    if below > _ALIKE and float(text) == 1:
        text = f"1−{_power(below, 0)}"
    return text, _error(error, decimals) if known else ""


def quantity(value: float | None, error: float | None = None) -> tuple[str, str]:
    """A number of any size and its error: two digits of it, with an exponent where they are small.

    >>> quantity(-3.2141, 0.0521), quantity(3.2141e-5, 1.23e-6), quantity(12345.6, 234.5)
    (('-3.214', '0.052'), ('3.21e-5', '1.2e-6'), ('12,346', '234'))
    >>> quantity(0.00012345), quantity(None)
    (('1.23e-4', ''), ('–', ''))
    """
    if value is None or not math.isfinite(value):
        return NONE, ""
    if error is None or not math.isfinite(error) or error <= 0:
        small = 0 < abs(value) < 10**-_USUAL
        return _power(value, 2) if small else f"{value:.3g}", ""
    decimals = max(0, _decimals(error, 2))
    if decimals <= _FIXED:
        return f"{value:,.{decimals}f}", f"{error:,.{decimals}f}"
    if value == 0:
        return "0", _power(error, 1)
    return _power(value, max(0, decimals + math.floor(math.log10(abs(value))))), _power(error, 1)


def joined(number: tuple[str, str]) -> str:
    """A number with its error, as a sentence has it.

    >>> joined(("0.87", "0.01")), joined(("1", ""))
    ('0.87 ± 0.01', '1')
    """
    return " ± ".join(part for part in number if part)


def aligned(numbers: list[tuple[str, str]], *, sign: str = " ± ") -> list[str]:
    """Numbers with errors, one below the other: points and signs stand in one column.

    >>> aligned([("0.99996", "0.00001"), ("0.87", "0.01"), ("-0.1", ""), ("–", "")])
    [' 0.99996 ± 0.00001', ' 0.87    ± 0.01', '-0.1', ' –']
    """
    signed = any(value.startswith("-") for value, _ in numbers)
    values = [value if value.startswith("-") or not signed else f" {value}" for value, _ in numbers]
    wide = max(map(len, values), default=0)
    pairs = zip(values, numbers, strict=True)
    return [f"{value:{wide}}{sign}{error}" if error else value for value, (_, error) in pairs]


def terse(number: tuple[str, str]) -> tuple[str, str]:
    """With the first digit of the error, and an exponent where that is much shorter.

    >>> terse(("0.999861", "0.000009")), terse(("0.875", "0.009"))
    (('0.999861', '9e-6'), ('0.875', '0.009'))
    """
    value, error = number
    return value, _power(float(error), 0) if len(error) > len("0.000") else error


def _decimals(error: float, significant: int) -> int:
    """After which so many digits of an error have been seen."""
    return significant - 1 - int(f"{error:.{significant - 1}e}".partition("e")[2])


def _error(error: float, decimals: int) -> str:
    text = f"{error:.{decimals}f}"
    return text if error == 0 or float(text) else _power(error, 0)


def _power(value: float, decimals: int) -> str:
    """With an exponent as short as it can be.

    >>> _power(2e-8, 0)
    '2e-8'
    """
    digits, _, exponent = f"{value:.{decimals}e}".partition("e")
    return f"{digits}e{int(exponent)}"
