"""What is loaded through the libraries of Hugging Face, and the errors that they end in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import DataError, ResemblanceError, first_line, optional

# what the libraries say of code that comes with a model, and of code that comes with data
_OF_CODE = ("trust_remote_code", "Dataset scripts")
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")
# kinds of models that number positions from after their padding token on
_COUNT_ON = ("roberta", "camembert", "longformer", "mpnet", "data2vec-text")
_ANY_LENGTH = 10**9  # what tokenizers say that know no longest sequence is more


@contextmanager
def loading(name: str, what: str, remedy: str) -> Iterator[None]:
    """Loads what a name stands for, without its code: whatever is raised becomes a DataError."""
    try:
        yield
    except ResemblanceError:
        raise
    except Exception as error:  # each library and version has its own
        if any(words in str(error) for words in _OF_CODE):
            raise needs_code(name) from error
        raise DataError(f"no {what} at {name!r} ({first_line(error)}); {remedy}") from error


def needs_code(name: str) -> DataError:
    """The refusal of what cannot be loaded without running code that comes with it."""
    return DataError(
        f"{name!r} on Hugging Face needs code of its own, and such code is never run; read it, "
        "then load it yourself in FILE.py:FUNCTION"
    )


def tokenizer_at(name: str) -> Any:
    """The tokenizer that was saved with a model."""
    transformers = optional("transformers", "transformers", "text")
    remedy = "save it beside the model, or make tokens in FILE.py:FUNCTION"
    with loading(name, "tokenizer", remedy):
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    if set(tokenizer.get_vocab().values()) <= set(tokenizer.all_special_ids):
        # from a folder without its files the library makes one that knows no words
        raise DataError(f"no tokenizer at {name!r} (no file with its vocabulary); {remedy}")
    return tokenizer


def text_config(name: str) -> Any:
    """The configuration of a model, or of the part of it that reads text."""
    transformers = optional("transformers", "transformers", "text")
    remedy = "expected a folder with config.json, or a name on the hub"
    with loading(name, "Hugging Face model", remedy):
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
    return config.get_text_config()


def longest_sequence(config: Any, tokenizer: Any) -> int | None:
    """How many tokens a model takes at a time; None where nothing says so."""
    known = [n for key in _POSITIONS if isinstance(n := getattr(config, key, None), int) and n > 0]
    if any(kind in str(getattr(config, "model_type", "")) for kind in _COUNT_ON):
        known = [n - 1 - (config.pad_token_id or 0) for n in known]
    told = tokenizer.model_max_length
    return min([*known, *([told] if told < _ANY_LENGTH else [])], default=None)
