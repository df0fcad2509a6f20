"""Text from elsewhere as people see it: names of models, layers, files and data are not obeyed.

A name may hold whatever its author liked. On a terminal an escape sequence rewrites what stands
above it, and an override of direction turns a line round; here each such character is spelt out.
"""

from __future__ import annotations

import unicodedata

# control (C0, DEL, C1), format (direction, zero width), surrogates, line and paragraph separators
_OBEYED = ("Cc", "Cf", "Cs", "Zl", "Zp")


def shown(text: str) -> str:
    r"""The text in one line, with every character that would be obeyed spelt out.

    >>> print(shown("net\x1b[31m\u202e"))
    net\x1b[31m\u202e
    """
    return "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c) in _OBEYED else c
        for c in text
    )
