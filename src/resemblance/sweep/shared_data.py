"""Data that a process has open: read once for all networks that it records on them.

One data set is held at a time, and dropped before the next is opened, so that memory never has to
hold two. Of text, networks share the tokens if their tokenizers make the same.
"""

from __future__ import annotations

from typing import Any

from .._data.hugging_face import longest_sequence, text_config, tokenizer_at
from .._data.tokenized_text import sequences_in
from .._data.tokenizer_facts import facts
from ..recording.by_name import opened_data
from .pairs import Pair


class SharedData:
    """What the last pair was recorded on, for those that come after it."""

    def __init__(self) -> None:
        self.times = 0  # that data were opened
        self._opens: Any = None
        self._tokens: Any = None
        self._data: Any = None

    def of(self, pair: Pair) -> Any:
        """The data of a pair, as `record` takes them."""
        tokens = None
        if self._opens == pair.opens and self._tokens is not None:
            tokens = _tokens(pair)
        if self._opens != pair.opens or self._tokens != tokens:
            self._opens = self._tokens = self._data = None
            data = opened_data(pair.wanted)
            self.times += 1
            if _read_once(data):
                return data
            self._opens, self._data = pair.opens, data
            self._tokens = None if sequences_in(data) is None else _tokens(pair)
        return self._data


def _read_once(data: Any) -> bool:
    """Whether data are gone once they have been read: an iterator's are."""
    return hasattr(data, "__next__")


def _tokens(pair: Pair) -> tuple[Any, ...] | None:
    """What the tokens of a text depend on, but for the text; None if no text goes to the model."""
    name = pair.wanted.model.removeprefix("hf:")
    if name == pair.wanted.model:
        return None
    tokenizer, config = tokenizer_at(name), text_config(name)
    return (
        facts(tokenizer), longest_sequence(config, tokenizer), getattr(config, "vocab_size", None),
        tokenizer.pad_token_id, tokenizer.eos_token_id, tuple(tokenizer("a")["input_ids"]),
    )  # fmt: skip
