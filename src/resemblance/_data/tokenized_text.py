"""Texts as sequences of token ids, made by a tokenizer.

*Packed*, texts follow one another, with the token that ends a text between them, and are cut into
sequences of one length; nothing is lost, and the last sequence is as short as it comes. With *each*
a text is a sequence, and what is longer is cut and counted. Every sequence is given the special
tokens that the tokenizer puts around a text. A running text is packed; of separate ones, each is a
sequence unless most of the first thousand are longer than that.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..errors import DataError
from .text_files import Texts

Packing = Literal["packed", "each"]
LENGTH = 512  # of sequences, where nothing says otherwise and the model takes as many
_LOOKED_AT = 1000  # texts, to choose how they are packed
_GROUP = 2**20  # characters handed to the tokenizer at a time


@dataclass(frozen=True)
class TextOptions:
    """How texts are read and cut; None leaves the choice to the rules above."""

    length: int | None = None  # of sequences, special tokens among them
    packing: Packing | None = None
    field: str | None = None  # of a row, that holds the text

    def __post_init__(self) -> None:
        if self.packing is not None and self.packing not in get_args(Packing):
            raise DataError(f"--packing must be packed or each; found {self.packing!r}")


@dataclass(frozen=True)
class TokenizedText(Dataset[dict[str, Tensor]]):
    """Sequences of token ids; a sample is a dict of `input_ids` and `attention_mask`."""

    tokens: np.ndarray  # (all,) of the sequences, one after the other
    ends: np.ndarray  # (n + 1,) where each begins, and the last ends
    tokenizer: Any
    summary: str  # what became of the texts, in a line

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = torch.from_numpy(self.tokens[self.ends[index] : self.ends[index + 1]]).long()
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def collate(self, samples: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """A batch, padded to the longest of all sequences, so that every batch has one shape."""
        longest = int(np.diff(self.ends).max())
        pad = self.tokenizer.pad_token_id
        ids = torch.full((len(samples), longest), 0 if pad is None else pad)
        mask = torch.zeros_like(ids)
        for row, sample in enumerate(samples):
            ids[row, : len(sample["input_ids"])] = sample["input_ids"]
            mask[row, : len(sample["input_ids"])] = 1
        return {"input_ids": ids, "attention_mask": mask}


def sequences_in(data: Any) -> TokenizedText | None:
    """The tokenized texts that a loader gives, or None if it is no loader of any."""
    held = data.dataset if isinstance(data, DataLoader) else None
    return held if isinstance(held, TokenizedText) else None


def tokenized(
    texts: Texts, tokenizer: Any, *, length: int, packing: Packing | None = None, limit: int = 0
) -> DataLoader[Any]:
    """A loader of the first `limit` sequences (0: of all) that texts make."""
    start, end = _around(tokenizer)
    room = length - len(start) - len(end)
    if room < 2:
        raise DataError(
            f"sequences of {length} tokens leave no room for text beside {len(start) + len(end)} "
            f"special tokens; use a --length of {len(start) + len(end) + 2} or more"
        )
    count = _Count()
    encoded = _encoded(texts, tokenizer, count)
    if packing is None and not texts.running:
        head = list(itertools.islice(encoded, _LOOKED_AT))
        packing = "packed" if head and np.median([len(ids) for ids in head]) > room else "each"
        encoded = itertools.chain(head, encoded)
    if packing == "each":
        cut = _each(encoded, room, count)
    else:
        between = [] if texts.running else _between(tokenizer)
        cut = _packed(encoded, room, np.array(between, np.int32))
    special = np.array(tokenizer.all_special_ids)
    spoken = (ids for ids in cut if count.kept(bool((~np.isin(ids, special)).any()), len(ids)))
    found = [np.concatenate([start, ids, end]) for ids in itertools.islice(spoken, limit or None)]
    if not found:
        raise DataError(f"no text in {texts.name}: expected at least one token of it")
    ends = np.cumsum([0, *(len(ids) for ids in found)])
    longest = int(np.diff(ends).max())
    summary = f"{texts.name}: {count.said(packing or 'packed', longest, length)}"
    made = TokenizedText(np.concatenate(found), ends, tokenizer, summary)
    return DataLoader(made, batch_size=32, collate_fn=made.collate)


@dataclass
class _Count:
    """What became of the texts."""

    blank: int = 0  # texts without a token
    cut: int = 0  # texts
    lost: int = 0  # tokens of those
    sequences: int = 0
    tokens: int = 0  # in the sequences
    unspoken: int = 0  # sequences without a token of text

    def kept(self, spoken: bool, tokens: int) -> bool:
        self.sequences += spoken
        self.tokens += tokens * spoken
        self.unspoken += not spoken
        return spoken

    def said(self, packing: Packing, longest: int, length: int) -> str:
        many = "1 sequence" if self.sequences == 1 else f"{self.sequences:,} sequences"
        parts = [f"{many}, one a text, of up to {longest} tokens"]
        if packing == "packed":
            parts = [f"{self.tokens:,} tokens, packed into {many} of up to {longest}"]
        if self.cut:
            parts.append(f"{self.cut:,} cut at {length} ({self.lost:,} tokens left out)")
        if self.blank:
            parts.append(f"{self.blank:,} empty left out")
        if self.unspoken:
            parts.append(f"{self.unspoken:,} of nothing but special tokens left out")
        return "; ".join(parts)


def _encoded(texts: Texts, tokenizer: Any, count: _Count) -> Iterator[np.ndarray]:
    """The tokens of each piece that has any, without special ones around it."""
    for group in _groups(texts.pieces):
        told = group if texts.running else [text for text in group if text.strip()]
        found = tokenizer(
            told,
            add_special_tokens=False,
            padding=False,
            truncation=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,  # of sequences longer than the model takes, which are cut here
        )["input_ids"] if told else []  # fmt: skip
        full = [np.array(ids, np.int32) for ids in found if len(ids)]
        count.blank += len(group) - len(full)
        yield from full


def _groups(pieces: Iterable[str]) -> Iterator[list[str]]:
    group: list[str] = []
    size = 0
    for piece in pieces:
        group.append(piece)
        size += len(piece)
        if size >= _GROUP or len(group) >= _LOOKED_AT:
            yield group
            group, size = [], 0
    if group:
        yield group


def _each(encoded: Iterable[np.ndarray], room: int, count: _Count) -> Iterator[np.ndarray]:
    for ids in encoded:
        count.cut += len(ids) > room
        count.lost += max(0, len(ids) - room)
        yield ids[:room]


def _packed(encoded: Iterable[np.ndarray], room: int, between: np.ndarray) -> Iterator[np.ndarray]:
    """Runs of `room` tokens, and what is left.

    >>> texts = np.array([1, 2, 3]), np.array([4, 5])
    >>> [run.tolist() for run in _packed(texts, 4, np.array([0]))]
    [[1, 2, 3, 0], [4, 5]]
    """
    waiting = np.empty(0, np.int32)
    for number, ids in enumerate(encoded):
        waiting = np.concatenate([waiting, *([between] if number else []), ids])
        full = len(waiting) // room * room
        yield from waiting[:full].reshape(-1, room)
        waiting = waiting[full:]
    if len(waiting):
        yield waiting


def _around(tokenizer: Any) -> tuple[np.ndarray, np.ndarray]:
    """The special tokens that a tokenizer puts before and after a text."""
    for probe in ("a", "1", "the"):
        bare = tokenizer(probe, add_special_tokens=False)["input_ids"]
        full = tokenizer(probe)["input_ids"]
        for at in range(len(full) - len(bare) + 1):
            if bare and full[at : at + len(bare)] == bare:
                parts = full[:at], full[at + len(bare) :]
                return np.array(parts[0], np.int32), np.array(parts[1], np.int32)
    return np.empty(0, np.int32), np.empty(0, np.int32)


def _between(tokenizer: Any) -> list[int]:
    """The token that ends a text, if the tokenizer has one."""
    ends = (tokenizer.eos_token_id, tokenizer.sep_token_id)
    return next(([end] for end in ends if end is not None), [])
