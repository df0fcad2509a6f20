"""Hugging Face tokenizers, configurations and data sets, and the errors raised on loading them.

Code that comes with a model or a data set is never run.

`TokenizerInfo` identifies a tokenizer by a hash of how it tokenises: its vocabulary, and the tokens
it makes of fixed passages that exercise merges, normalisation, spaces, numbers and scripts. Special
tokens, padding and truncation are excluded, as fine-tuned copies often add some. With equal hashes,
the same text gives the same tokens, whatever the library or its version.
"""

from __future__ import annotations

import hashlib
import socket
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import DataError, ResemblanceError, broken_torchvision, first_line, import_optional
from .batches import LABEL_KEYS, concat_batches

# what the libraries say of code that comes with a model, and of code that comes with data
_REMOTE_CODE_PHRASES = ("trust_remote_code", "Dataset scripts")
_LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len")
# kinds of models that number positions from after their padding token on
_PADDING_OFFSET_MODELS = ("roberta", "camembert", "longformer", "mpnet", "data2vec-text")
_UNBOUNDED_LENGTH = 10**9  # what tokenizers say that know no longest sequence is more


@contextmanager
def convert_load_errors(name: str, what: str, remedy: str) -> Iterator[None]:
    """Loads what a name stands for, without its code: whatever is raised becomes a DataError.

    A path that is not there is not asked for on the hub, and the hub's own log of retries is held
    back, as the error says what was tried.
    """
    missing = not name.startswith("gguf:") and not Path(name).expanduser().exists()
    if missing and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise DataError(f"no folder at {name}; expected one that exists, or a name on the hub")
    try:
        with _quiet_hub():
            yield
    except ResemblanceError:
        raise
    except Exception as error:  # each library and version has its own
        if any(words in str(error) for words in _REMOTE_CODE_PHRASES):
            raise remote_code_error(name) from error
        if broken := broken_torchvision(error):
            raise broken from error
        tried = f"there is no folder {name}, and on the hub: " if missing else ""
        raise DataError(f"no {what} at {name!r} ({tried}{first_line(error)}); {remedy}") from error


@contextmanager
def _quiet_hub() -> Iterator[None]:
    """The hub's library logs errors alone, and not each time that it tries again."""
    try:
        from huggingface_hub.utils import logging
    except ImportError:  # what is loaded without it does not ask the hub
        yield
        return
    level = logging.get_verbosity()
    logging.set_verbosity(40)  # errors, as of Python's own logging
    try:
        yield
    finally:
        logging.set_verbosity(level)


def _hub_has_address() -> bool:
    """Whether the hub's host is known here; a proxy may know it where this machine does not."""
    if urllib.request.getproxies():
        return True
    from huggingface_hub.constants import ENDPOINT

    try:
        socket.getaddrinfo(urllib.parse.urlsplit(ENDPOINT).hostname, None)
    except OSError:
        return False
    return True


def remote_code_error(name: str) -> DataError:
    """The refusal of what cannot be loaded without running code that comes with it."""
    return DataError(
        f"{name!r} on Hugging Face needs custom code, which is never run; review it, then load the "
        "model yourself in FILE.py:FUNCTION"
    )


def own_tokenizer(model: str) -> str | None:
    """What names the tokenizer of a model's address; None for one that has none.

    >>> (own_tokenizer("hf:gpt2"), own_tokenizer("timm:resnet18"))
    ('gpt2', None)
    """
    if model.startswith("gguf:") or model.endswith(".gguf"):
        return f"gguf:{model.removeprefix('gguf:')}"
    return model.removeprefix("hf:") if model.startswith("hf:") else None


def pretrained_source(name: str) -> tuple[str, dict[str, Any]]:
    """What `from_pretrained` takes for a name, a folder, or `gguf:FILE`; never a model's code."""
    options: dict[str, Any] = {"trust_remote_code": False}
    if not name.startswith("gguf:"):
        if not Path(name).expanduser().exists() and not _hub_has_address():
            options["local_files_only"] = True  # of the cache: asking again takes half a minute
        return name, options
    import_optional("gguf", "gguf", "gguf")
    path = Path(name.removeprefix("gguf:"))
    if not path.is_file():
        raise DataError(f"no file at {path}; expected a GGUF model")
    return str(path.parent), options | {"gguf_file": path.name}


def load_tokenizer(name: str) -> Any:
    """The tokenizer that was saved with a model."""
    remedy = "save it with the model, or tokenize in FILE.py:FUNCTION"
    tokenizer = _from_pretrained("AutoTokenizer", name, "tokenizer", remedy)
    if set(tokenizer.get_vocab().values()) <= set(tokenizer.all_special_ids):
        # from a folder without its files the library makes one that knows no words
        raise DataError(f"no tokenizer at {name!r} (no file with its vocabulary); {remedy}")
    return tokenizer


def load_text_config(name: str) -> Any:
    """The configuration of a model, or of the part of it that reads text."""
    remedy = "expected a folder with config.json, or a name on the hub"
    return _from_pretrained("AutoConfig", name, "Hugging Face model", remedy).get_text_config()


def _from_pretrained(loader: str, name: str, what: str, remedy: str) -> Any:
    transformers = import_optional("transformers", "transformers", "text")
    with convert_load_errors(name, what, remedy):
        source, options = pretrained_source(name)
        return getattr(transformers, loader).from_pretrained(source, **options)


def max_sequence_length(config: Any, tokenizer: Any) -> int | None:
    """How many tokens a model takes at a time; None where nothing says so."""
    known = [
        n for key in _LENGTH_KEYS if isinstance(n := getattr(config, key, None), int) and n > 0
    ]
    if any(kind in str(getattr(config, "model_type", "")) for kind in _PADDING_OFFSET_MODELS):
        known = [n - 1 - (config.pad_token_id or 0) for n in known]
    told = tokenizer.model_max_length
    return min([*known, *([told] if told < _UNBOUNDED_LENGTH else [])], default=None)


# -- data sets of the library datasets ------------------------------------------------------------


def is_hf_dataset(data: Any, *, streaming: bool = False) -> bool:
    """Whether it is a `datasets.Dataset`, or with `streaming` an `IterableDataset`.

    The library is not imported to find out.
    """
    kind = getattr(sys.modules.get("datasets"), "IterableDataset" if streaming else "Dataset", None)
    return kind is not None and isinstance(data, kind)


def with_tensor_columns(table: Any) -> Any:
    """The table with its columns of numbers as tensors, and without its columns of text.

    In its default format the library returns Python lists, which a DataLoader collates position by
    position. A table that holds nothing but text and labels is returned as it is.
    """
    columns = [name for name in table.format["columns"] if _is_numeric(table.features[name])]
    if not set(columns).difference(LABEL_KEYS):
        return table
    kind = table.format["type"]
    return table.with_format(kind if kind in ("torch", "numpy") else "torch", columns=columns)


def _is_numeric(feature: Any) -> bool:
    """Whether all values that a column's feature describes become tensors."""
    if isinstance(feature, Mapping | list | tuple):
        parts = feature.values() if isinstance(feature, Mapping) else feature
        return all(map(_is_numeric, parts))
    inner = getattr(feature, "feature", None)  # of a list
    if inner is not None:
        return _is_numeric(inner)
    dtype = str(getattr(feature, "dtype", ""))
    return dtype.startswith(("int", "uint", "float", "bool")) or "Image" in dtype


def collate_rows(rows: list[dict[str, Any]]) -> Any:
    """A batch of rows; sequences of different lengths are padded if there is an attention mask."""
    return concat_batches(
        [{name: torch.as_tensor(x)[None] for name, x in row.items()} for row in rows]
    )


_HASH_PASSAGES = (
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
class TokenizerInfo:
    """A tokenizer in brief."""

    hash: str  # of how it makes tokens of text
    special: frozenset[int]  # tokens that are no text
    mask: int | None  # the token that stands for one to be filled in


def tokenizer_info(tokenizer: Any) -> TokenizerInfo:
    """What is known of a tokenizer of the libraries transformers or tokenizers."""
    special, mask = frozenset[int](), None
    if hasattr(tokenizer, "get_added_tokens_decoder"):  # of the library tokenizers
        plain = type(tokenizer).from_str(tokenizer.to_str())
        plain.no_padding()
        plain.no_truncation()
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        added = tokenizer.get_added_tokens_decoder()
        encoded = [plain.encode(text, add_special_tokens=False).ids for text in _HASH_PASSAGES]
    elif callable(tokenizer) and hasattr(tokenizer, "get_vocab"):
        special = frozenset(getattr(tokenizer, "all_special_ids", ()))
        mask = getattr(tokenizer, "mask_token_id", None)
        vocabulary, added = tokenizer.get_vocab(), getattr(tokenizer, "added_tokens_decoder", {})
        options = {"add_special_tokens": False, "padding": False, "truncation": False}
        encoded = [tokenizer(text, **options)["input_ids"] for text in _HASH_PASSAGES]
    else:
        raise DataError(
            "tokenizer must be one of the libraries transformers or tokenizers; found "
            f"{type(tokenizer).__name__}"
        )
    marked = frozenset(i for i, token in added.items() if token.special)
    digest = hashlib.blake2b(digest_size=8)
    for token, i in sorted(vocabulary.items(), key=lambda item: (item[1], item[0])):
        if i not in marked:
            digest.update(f"{i} {token}\n".encode("utf-8", "backslashreplace"))
    digest.update("".join(f"{ids}\n" for ids in encoded).encode())
    return TokenizerInfo(digest.hexdigest(), special | marked, mask)
