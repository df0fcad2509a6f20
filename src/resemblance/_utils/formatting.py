"""Text for people: numbers rounded to what their standard error supports, and safe strings.

Numbers get as many digits as their standard error calls for, and as many as they need to differ
from 0 or 1. Names of models, layers, files and data may hold anything: on a terminal an escape
sequence could overwrite the lines above it, and a direction override could reverse a line. So
`printable` replaces each such character by its escape.
"""

from __future__ import annotations

import math
import textwrap
import unicodedata
from collections.abc import Iterable, Mapping

_MAX_DECIMALS = 6  # decimals
_DEFAULT_DECIMALS = 3  # where no error says how many
_MAX_FIXED_DECIMALS = 5  # decimals, up to which quantities are written without an exponent
_SCORE_ROUNDOFF = 1e-9  # 1 less a score: what float32 and packing leave of a layer and itself
_ERROR_ROUNDOFF = 1e-7  # of such a score: what packing leaves of none
_GLUE = "\xa0"  # a blank at which no line is broken
MISSING = "–"  # in place of a number that is not there


def format_score(value: float, error: float = math.nan, *, significant: int = 2) -> tuple[str, str]:
    """A similarity and its error, which may be blank: so many digits of the error, of six decimals.

    A score below 1 is never rounded to 1.

    >>> (format_score(0.8741, 0.0123),
    ...  format_score(0.99996, 0.0000124, significant=1), format_score(1.0, 0.0))
    (('0.874', '0.012'), ('0.99996', '0.00001'), ('1', ''))
    >>> format_score(1 - 7e-8, 2e-8), format_score(0.5), format_score(math.nan)
    (('1−7e-8', '2e-8'), ('0.500', ''), ('–', ''))
    """
    if not math.isfinite(value):
        return MISSING, ""
    known = math.isfinite(error)
    if abs(1 - value) <= _SCORE_ROUNDOFF and not (known and error > _ERROR_ROUNDOFF):
        return "1", ""
    decimals = (
        max(2, _decimals_for(error, significant)) if known and error > 0 else _DEFAULT_DECIMALS
    )
    below = 1 - value
    if below > _SCORE_ROUNDOFF:
        decimals = max(decimals, math.ceil(-math.log10(below)))
    decimals = min(decimals, _MAX_DECIMALS)
    text = f"{value:.{decimals}f}"
    if below > _SCORE_ROUNDOFF and float(text) == 1:
        text = f"1−{_scientific(below, 0)}"
    return text, _format_error(error, decimals) if known else ""


def format_quantity(value: float | None, error: float | None = None) -> tuple[str, str]:
    """A number of any size and its error: two digits of it, with an exponent where they are small.

    >>> (format_quantity(-3.2141, 0.0521), format_quantity(3.2141e-5, 1.23e-6),
    ...  format_quantity(12345.6, 234.5))
    (('-3.214', '0.052'), ('3.21e-5', '1.2e-6'), ('12,346', '234'))
    >>> format_quantity(0.00012345), format_quantity(None)
    (('1.23e-4', ''), ('–', ''))
    """
    if value is None or not math.isfinite(value):
        return MISSING, ""
    if error is None or not math.isfinite(error) or error <= 0:
        small = 0 < abs(value) < 10**-_DEFAULT_DECIMALS
        return _scientific(value, 2) if small else f"{value:.3g}", ""
    decimals = max(0, _decimals_for(error, 2))
    if decimals <= _MAX_FIXED_DECIMALS:
        return f"{value:,.{decimals}f}", f"{error:,.{decimals}f}"
    if value == 0:
        return "0", _scientific(error, 1)
    return _scientific(value, max(0, decimals + math.floor(math.log10(abs(value))))), _scientific(
        error, 1
    )


def join_error(number: tuple[str, str]) -> str:
    """A number with its error, as a sentence has it.

    >>> join_error(("0.87", "0.01")), join_error(("1", ""))
    ('0.87 ± 0.01', '1')
    """
    return " ± ".join(part for part in number if part)


def align_numbers(numbers: list[tuple[str, str]], *, sign: str = " ± ") -> list[str]:
    """Numbers with errors, one below the other: points and signs stand in one column.

    >>> align_numbers([("0.99996", "0.00001"), ("0.87", "0.01"), ("-0.1", ""), ("–", "")])
    [' 0.99996 ± 0.00001', ' 0.87    ± 0.01', '-0.1', ' –']
    """
    signed = any(value.startswith("-") for value, _ in numbers)
    values = [value if value.startswith("-") or not signed else f" {value}" for value, _ in numbers]
    wide = max(map(len, values), default=0)
    pairs = zip(values, numbers, strict=True)
    return [f"{value:{wide}}{sign}{error}" if error else value for value, (_, error) in pairs]


def shorten_error(number: tuple[str, str]) -> tuple[str, str]:
    """With the first digit of the error, and an exponent where that is much shorter.

    >>> shorten_error(("0.999861", "0.000009")), shorten_error(("0.875", "0.009"))
    (('0.999861', '9e-6'), ('0.875', '0.009'))
    """
    value, error = number
    return value, _scientific(float(error), 0) if len(error) > len("0.000") else error


def _decimals_for(error: float, significant: int) -> int:
    """After which so many digits of an error have been seen."""
    return significant - 1 - int(f"{error:.{significant - 1}e}".partition("e")[2])


def _format_error(error: float, decimals: int) -> str:
    text = f"{error:.{decimals}f}"
    return text if error == 0 or float(text) else _scientific(error, 0)


def _scientific(value: float, decimals: int) -> str:
    """With an exponent as short as it can be.

    >>> _scientific(2e-8, 0)
    '2e-8'
    """
    digits, _, exponent = f"{value:.{decimals}e}".partition("e")
    return f"{digits}e{int(exponent)}"


def wrap_sentence(text: str, width: int, *, indent: int = 0) -> list[str]:
    """Lines of a sentence, broken between words, a number and its error on one line.

    >>> wrap_sentence("It is 0.87 ± 0.01 here.", 10, indent=2)
    ['It is', '  0.87 ± 0.01', '  here.']
    """
    kept = text.replace(" ± ", f"{_GLUE}±{_GLUE}").replace(" %", f"{_GLUE}%")
    lines = textwrap.wrap(
        kept, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace(f"{_GLUE}±{_GLUE}", " ± ").replace(f"{_GLUE}%", " %") for line in lines]


# control (C0, DEL, C1), format (direction, zero width), surrogates, line and paragraph separators
_CONTROL_CATEGORIES = ("Cc", "Cf", "Cs", "Zl", "Zp")


def printable(text: str) -> str:
    r"""The text in one line, with every character that would be obeyed spelt out.

    >>> print(printable("net\x1b[31m\u202e"))
    net\x1b[31m\u202e
    """
    return "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c) in _CONTROL_CATEGORIES else c
        for c in text
    )


def count_noun(count: int, one: str, several: str) -> str:
    """A number of things.

    >>> count_noun(1, "family", "families"), count_noun(2000, "family", "families")
    ('1 family', '2,000 families')
    """
    return f"{count:,} {one if count == 1 else several}"


def join_names(names: Iterable[object], most: int = 8) -> str:
    """Names, and of very many the number of those left out.

    >>> join_names(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    texts = [printable(str(name)) for name in names]
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def left_out_sentence(reasons: Mapping[str, int]) -> str:
    """A sentence on how many things were left out, by reason.

    >>> left_out_sentence({"damaged": 1200, "with other layers": 2})
    'Skipped: 1,200 damaged, 2 with other layers.'
    """
    return f"Skipped: {', '.join(f'{count:,} {why}' for why, count in reasons.items())}."
