"""What a recording needs to know of a tokenizer: a hash of how it makes tokens, and its own ones.

The hash is of what it does with text: its vocabulary, and the tokens that it makes of the passages
below, which merges, normalisation and the handling of spaces, numbers and scripts show in. Special
tokens are left out, as fine-tuned copies often bring some more, and so is how it pads and cuts:
with equal hashes, the same text is the same tokens, whatever the library or its version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import DataError

_PASSAGES = (
    "The quick brown fox jumps over the lazy dog, and then it doesn't; nobody's surprised.",
    " a leading space,  two spaces,   three spaces,\ta tab,\t\ttwo tabs, and a trailing one ",
    "line\nline\n\nparagraph\r\nwindows\n\n\n  indented\n",
    "UPPER lower Title camelCase snake_case kebab-case SCREAMING_CASE iPhone",
    "0 1 12 123 1234 12345 1234567890 3.14159 1,000,000 -7 1e-9 0xFF 50% $9.99 2021-03-04T05:06:07",
    "def f(x: int) -> int:\n    return [i ** 2 for i in range(x) if i % 3 != 0]  # comment\n",
    "<div class=\"a\">&amp;</div> {'key': [1, 2]} \\n \\u00e9 // /* */ <- => != && || @user #tag",
    "internationalization antidisestablishmentarianism unbelievably electroencephalographically",
    "Éléonore naïve façade, Straße über Öl, ñandú, çığ, łódź, ångström, ﬁne ﬂow, Ⅷ, ½, x²",
    "e\u0301 versus \u00e9, A\u030a versus \u00c5, \u200bzero\u200dwidth\u00a0no-break\u3000wide",
    "Съешь же ещё этих мягких французских булок. Η ταχεία αλεπού. שלום עולם. مرحبا بالعالم",
    "नमस्ते दुनिया, สวัสดีชาวโลก, 你好，世界。こんにちは世界。안녕하세요 세계.",
    "🙂 👩‍💻 🇫🇷 ½ © ™ — – “quotes” ‘single’ … • → ∑ ∞ ≠",
    "https://example.org/path?query=1&other=2 name@example.org C:\\folder\\file.txt ../up",
    "aaaaaaaaaaaaaaaa hahahaha mississippi !!!! ???? .... ----- ===== _____",
)


@dataclass(frozen=True)
class TokenizerFacts:
    """A tokenizer in brief."""

    hash: str  # of how it makes tokens of text
    special: frozenset[int]  # tokens that are no text
    mask: int | None  # the token that stands for one to be filled in


def facts(tokenizer: Any) -> TokenizerFacts:
    """What is known of a tokenizer of the libraries transformers or tokenizers."""
    if hasattr(tokenizer, "get_added_tokens_decoder"):  # of the library tokenizers
        return _facts(
            tokenizer.get_vocab(with_added_tokens=True),
            tokenizer.get_added_tokens_decoder(),
            _apart(tokenizer),
        )
    if not callable(tokenizer) or not hasattr(tokenizer, "get_vocab"):
        raise DataError(
            "tokenizer must be one of the libraries transformers or tokenizers; found "
            f"{type(tokenizer).__name__}"
        )

    def encode(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False, padding=False, truncation=False)[
            "input_ids"
        ]

    added = getattr(tokenizer, "added_tokens_decoder", {})
    return _facts(
        tokenizer.get_vocab(),
        added,
        encode,
        frozenset(getattr(tokenizer, "all_special_ids", ())),
        getattr(tokenizer, "mask_token_id", None),
    )


def _facts(
    vocabulary: Mapping[str, int],
    added: Mapping[int, Any],
    encode: Callable[[str], list[int]],
    special: frozenset[int] = frozenset(),
    mask: int | None = None,
) -> TokenizerFacts:
    marked = frozenset(i for i, token in added.items() if token.special)
    digest = hashlib.blake2b(digest_size=8)
    for token, i in sorted(vocabulary.items(), key=lambda item: (item[1], item[0])):
        if i not in marked:
            digest.update(f"{i} {token}\n".encode("utf-8", "backslashreplace"))
    for passage in _PASSAGES:
        digest.update(f"{encode(passage)}\n".encode())
    return TokenizerFacts(digest.hexdigest(), special | marked, mask)


def _apart(tokenizer: Any) -> Callable[[str], list[int]]:
    """How a tokenizer of the library tokenizers encodes, whatever it pads to or cuts at."""
    alone = type(tokenizer).from_str(tokenizer.to_str())
    alone.no_padding()
    alone.no_truncation()
    return lambda text: alone.encode(text, add_special_tokens=False).ids
