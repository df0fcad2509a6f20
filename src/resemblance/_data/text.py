"""Text data: texts read from files and tables, and tokenised into sequences of token ids.

A .txt file is one running text, or with `lines` one text a line. A .jsonl file and a Hugging Face
data set hold one text per row: in the requested field, else in `text`, `sentence` or
`content`, else in their only text field. Files are read a little at a time.

*Packed* texts are concatenated, with an end-of-text token between them, and cut into sequences of
one length. No token is lost, and the last sequence may be shorter. With *each*, every text is one
sequence, truncated if too long, and truncations are counted. The tokenizer's special tokens are
added around every sequence. Running text is packed. Separate texts are one sequence each, unless
most of the first thousand are longer than a sequence.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..errors import DataError, FormatError, close_matches, first_line

TEXT_SUFFIXES = (".txt", ".jsonl")
_COMMON_TEXT_FIELDS = ("text", "sentence", "content")
_CHARS_PER_READ = 2**16  # characters of a running text to read at a time, to the end of a line
_TABLE_BATCH_ROWS = 1000  # of a table that are read at a time


@dataclass(frozen=True)
class Texts:
    """Texts and where they are from."""

    name: str  # for people
    pieces: Iterable[str]
    running: bool = False  # pieces follow one another in one text


def texts_from_file(path: Path, field: str | None = None, *, lines: bool = False) -> Texts:
    """The texts of a .txt or .jsonl file.

    Args:
        path: the file.
        field: which field of a row holds the text, by default the usual or the only one.
        lines: whether each line of a .txt file is a text of its own.

    Raises:
        DataError: there is no such field, or it holds no text.
    """
    if path.suffix != ".jsonl":
        if field is not None:
            raise DataError(f"{path} has no field {field!r}: it is plain text; omit `text_field`")
        return Texts(str(path), _read_text(path, lines), running=not lines)
    _, first = next(_jsonl_objects(path), (0, None))
    if first is None:
        raise DataError(f"{path} is empty: expected an object with a text in each line")
    of_text = [key for key, value in first.items() if isinstance(value, str)]
    chosen = choose_text_field(field, of_text, list(first), str(path))
    return Texts(f"{path} ({chosen})", _jsonl_texts(path, chosen))


def texts_from_table(table: Any, name: str, field: str | None = None) -> Texts:
    """The texts of a table of the library datasets."""
    kinds = {column: getattr(kind, "dtype", None) for column, kind in table.features.items()}
    of_text = [column for column, kind in kinds.items() if kind in ("string", "large_string")]
    chosen = choose_text_field(field, of_text, list(kinds), name)
    batches = table.select_columns([chosen]).iter(batch_size=_TABLE_BATCH_ROWS)
    return Texts(f"{name} ({chosen})", (text or "" for batch in batches for text in batch[chosen]))


def choose_text_field(
    wanted: str | None, of_text: Sequence[str], every: Sequence[str], name: str
) -> str:
    """The field that holds the text, or an error that says which there are."""
    hint = f"set `text_field` to the one that contains the text: {', '.join(of_text)}"
    hint = hint if of_text else "expected one of text"
    if wanted is not None:
        if wanted not in every:
            raise DataError(
                f"{name} has no field {wanted!r}; nearest: {close_matches(wanted, every)}"
            )
        if wanted not in of_text:
            raise DataError(f"field {wanted!r} of {name} holds no text; {hint}")
        return wanted
    usual = next((field for field in _COMMON_TEXT_FIELDS if field in of_text), None)
    if usual is None and len(of_text) != 1:
        raise DataError(f"found the fields {', '.join(every)} in {name}; {hint}")
    return usual or of_text[0]


def _read_text(path: Path, lines: bool) -> Iterator[str]:
    try:
        with open(path, encoding="utf-8-sig") as file:
            if lines:
                yield from (line.rstrip("\n") for line in file)
            while stretch := file.readlines(_CHARS_PER_READ):
                yield "".join(stretch)
    except UnicodeDecodeError as error:
        raise FormatError(
            f"{path} is not UTF-8 text ({first_line(error)}); convert it, for example with iconv"
        ) from error


def _jsonl_texts(path: Path, field: str) -> Iterator[str]:
    for number, row in _jsonl_objects(path):
        text = row.get(field, ...)
        if text is not None and not isinstance(text, str):
            what = "no such field" if text is ... else type(text).__name__
            raise DataError(
                f"expected text as {field!r} in line {number} of {path}, found {what}; fix or "
                "remove the line, or choose a different field with `text_field`"
            )
        yield text or ""


def _jsonl_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of each line that is not blank."""
    for number, line in enumerate(_read_text(path, lines=True), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise FormatError(
                f"line {number} of {path} is not JSON ({first_line(error)}); write one object a "
                "line"
            ) from error
        if not isinstance(row, dict):
            raise FormatError(
                f"expected an object in line {number} of {path}, found {type(row).__name__}; write "
                'such as {"text": "..."}'
            )
        yield number, row


Packing = Literal["packed", "each"]
DEFAULT_LENGTH = 512  # of sequences, where nothing says otherwise and the model takes as many
_TRIAL_TEXTS = 1000  # texts, to choose how they are packed
_CHARS_PER_CALL = 2**20  # characters handed to the tokenizer at a time


@dataclass(frozen=True)
class TextOptions:
    """How texts are read and cut; None leaves the choice to the rules above."""

    length: int | None = None  # of sequences, special tokens among them
    packing: Packing | None = None
    field: str | None = None  # of a row, that holds the text
    tokenizer: str | None = None  # a folder or a name on the hub, in place of the model's own

    def __post_init__(self) -> None:
        if self.packing is not None and self.packing not in get_args(Packing):
            raise DataError(f"`packing` must be packed or each; found {self.packing!r}")


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
        padding = {"input_ids": self.tokenizer.pad_token_id or 0, "attention_mask": 0}
        return {
            name: torch.stack(
                [F.pad(x[name], (0, longest - len(x[name])), value=p) for x in samples]
            )
            for name, p in padding.items()
        }


def tokenized_text_of(data: Any) -> TokenizedText | None:
    """The tokenized texts that a loader gives, or None if it is no loader of any."""
    dataset = getattr(data, "dataset", None)
    return dataset if isinstance(data, DataLoader) and isinstance(dataset, TokenizedText) else None


def tokenize_texts(
    texts: Texts, tokenizer: Any, *, length: int, packing: Packing | None = None, limit: int = 0
) -> DataLoader[Any]:
    """A loader of the first `limit` sequences (0: of all) that texts make."""
    start, end = _surrounding_tokens(tokenizer)
    room = length - len(start) - len(end)
    if room < 2:
        raise DataError(
            f"sequences of {length} tokens have no room for text after {len(start) + len(end)} "
            f"special tokens; use `length={len(start) + len(end) + 2}` or more"
        )
    counts: Counter[str] = Counter()
    encoded = _encode_texts(texts, tokenizer, counts)
    if packing is None and not texts.running:
        head = list(itertools.islice(encoded, _TRIAL_TEXTS))
        packing = "packed" if head and np.median([len(ids) for ids in head]) > room else "each"
        encoded = itertools.chain(head, encoded)
    if packing != "each":
        ends_text = [tokenizer.eos_token_id, tokenizer.sep_token_id]
        separator = [] if texts.running else [x for x in ends_text if x is not None][:1]
        encoded = _pack_tokens(encoded, room, np.array(separator, np.int32))
    special, sequences = np.array(tokenizer.all_special_ids), list[np.ndarray]()
    for ids in encoded:
        counts["cut"] += len(ids) > room
        counts["lost"] += max(0, len(ids) - room)
        if np.isin(ids[:room], special).all():
            counts["special only"] += 1
            continue
        sequences.append(np.concatenate([start, ids[:room], end]))
        counts["tokens"] += len(ids[:room])
        if len(sequences) == limit:
            break
    if not sequences:
        raise DataError(f"no text in {texts.name}: expected at least one token of it")
    many = "1 sequence" if len(sequences) == 1 else f"{len(sequences):,} sequences"
    longest = max(map(len, sequences))
    parts = [f"{counts['tokens']:,} tokens, packed into {many} of up to {longest}"]
    if packing == "each":
        parts = [f"{many}, one a text, of up to {longest} tokens"]
    what_became = {
        "cut": f"cut at {length} ({counts['lost']:,} tokens left out)",
        "blank": "empty left out",
        "special only": "of nothing but special tokens left out",
    }
    parts += [f"{counts[why]:,} {words}" for why, words in what_became.items() if counts[why]]
    summary = f"{texts.name}: {'; '.join(parts)}"
    ends = np.cumsum([0, *map(len, sequences)])
    data = TokenizedText(np.concatenate(sequences), ends, tokenizer, summary)
    return DataLoader(data, batch_size=32, collate_fn=data.collate)


def _encode_texts(texts: Texts, tokenizer: Any, counts: Counter[str]) -> Iterator[np.ndarray]:
    """The tokens of each piece that has any, without special ones around it."""
    for group in _group_texts(texts.pieces):
        nonblank = group if texts.running else [text for text in group if text.strip()]
        found = tokenizer(
            nonblank,
            add_special_tokens=False,
            padding=False,
            truncation=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,  # of sequences longer than the model takes, which are cut here
        )["input_ids"] if nonblank else []  # fmt: skip
        full = [np.array(ids, np.int32) for ids in found if len(ids)]
        counts["blank"] += len(group) - len(full)
        yield from full


def _group_texts(pieces: Iterable[str]) -> Iterator[list[str]]:
    group: list[str] = []
    size = 0
    for piece in pieces:
        group.append(piece)
        size += len(piece)
        if size >= _CHARS_PER_CALL or len(group) >= _TRIAL_TEXTS:
            yield group
            group, size = [], 0
    if group:
        yield group


def _pack_tokens(
    encoded: Iterable[np.ndarray], room: int, between: np.ndarray
) -> Iterator[np.ndarray]:
    """Runs of `room` tokens, and what is left.

    >>> texts = np.array([1, 2, 3]), np.array([4, 5])
    >>> [run.tolist() for run in _pack_tokens(texts, 4, np.array([0]))]
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


def _surrounding_tokens(tokenizer: Any) -> tuple[np.ndarray, np.ndarray]:
    """The special tokens that a tokenizer puts before and after a text."""
    for probe in ("a", "1", "the"):
        bare = tokenizer(probe, add_special_tokens=False)["input_ids"]
        full = tokenizer(probe)["input_ids"]
        for at in range(len(full) - len(bare) + 1):
            if bare and full[at : at + len(bare)] == bare:
                return np.array(full[:at], np.int32), np.array(full[at + len(bare) :], np.int32)
    return np.empty(0, np.int32), np.empty(0, np.int32)
