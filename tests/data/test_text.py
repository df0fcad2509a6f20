"""Texts as token sequences: nothing lost, truncation counted; texts in files and tables."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import little_language as little
from resemblance._data import text
from resemblance._data import text as text_module
from resemblance._data.text import (
    TextOptions,
    Texts,
    TokenizedText,
    texts_from_file,
    texts_from_table,
    tokenize_texts,
    tokenized_text_of,
)
from resemblance.errors import DataError, FormatError

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def words():
    return little.tokenizer()


@pytest.fixture(scope="module")
def framing():
    return little.framing_tokenizer()


def made(texts, tokenizer, running=False, **options) -> TokenizedText:
    found = tokenized_text_of(tokenize_texts(Texts("some", texts, running), tokenizer, **options))
    assert found is not None
    return found


def rows(data):
    return [sample["input_ids"].tolist() for sample in (data[i] for i in range(len(data)))]


def ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@settings(max_examples=50, deadline=None)
@given(
    texts=st.lists(st.text(max_size=60), min_size=1, max_size=12).filter(
        lambda texts: any(text.strip() for text in texts)
    ),
    length=st.integers(4, 30),
)
def test_packing_loses_nothing(words, framing, texts, length):
    told = [text for text in texts if text.strip()]
    for tokenizer, frame, end in ((words, ([], []), 0), (framing, ([1], [2]), 2)):
        found = rows(made(texts, tokenizer, length=length, packing="packed"))
        room = length - len(frame[0]) - len(frame[1])
        inner = [row[len(frame[0]) : len(row) - len(frame[1])] for row in found]
        joined = list(itertools.chain.from_iterable(inner))
        parts = [[*ids(tokenizer, text), end] for text in told]
        assert joined == list(itertools.chain.from_iterable(parts))[:-1]
        assert all(len(row) == room for row in inner[:-1])
        assert found == [frame[0] + part + frame[1] for part in inner]


def test_a_running_text_has_nothing_between_its_pieces(words):
    pieces = [f"{text}\n" for text in little.SENTENCES]
    found = rows(made(pieces, words, running=True, length=20))
    joined = list(itertools.chain.from_iterable(found))
    assert joined == [i for piece in pieces for i in ids(words, piece)]
    assert 0 not in joined


@pytest.mark.parametrize("length", [8, 24, 200])
def test_each_text_is_what_the_tokenizer_makes_of_it(words, framing, length):
    for tokenizer in (words, framing):
        found = rows(made(little.TEXTS, tokenizer, length=length, packing="each"))
        cut = {"truncation": True, "max_length": length}
        assert found == tokenizer(little.TEXTS, **cut)["input_ids"]


def test_what_was_cut_and_left_out_is_said(words):
    texts = ["", "the fox", "  \n", little.SENTENCES[1], little.SENTENCES[2], "<|end|>"]
    lengths = [len(ids(words, text)) for text in texts]
    found = made(texts, words, length=10, packing="each")
    lost = sum(max(0, n - 10) for n in lengths)
    assert len(found) == 3
    assert found.summary == (
        f"some: 3 sequences, one a text, of up to 10 tokens; 2 cut at 10 ({lost} tokens left out); "
        "2 empty left out; 1 of nothing but special tokens left out"
    )
    packed = made(texts[1:4], words, length=10, packing="packed")
    total = lengths[1] + 1 + lengths[3]
    assert packed.summary == (
        f"some: {total} tokens, packed into {-(-total // 10)} sequences of up to 10; "
        "1 empty left out"
    )


def test_short_texts_are_taken_each_and_long_ones_packed(words):
    median = int(np.median([len(ids(words, text)) for text in little.TEXTS]))
    assert "one a text" in made(little.TEXTS, words, length=median + 1).summary
    assert "packed into" in made(little.TEXTS, words, length=median - 1).summary
    assert "packed into" in made(["a", "b"], words, running=True, length=9).summary


@pytest.mark.parametrize("packing", ["packed", "each", None])
def test_a_limit_gives_the_first_and_reads_no_further(words, packing, monkeypatch):
    monkeypatch.setattr(text_module, "_CHARS_PER_CALL", 100)
    monkeypatch.setattr(text_module, "_TRIAL_TEXTS", 7)
    read = []
    whole = rows(made(little.TEXTS, words, length=12, packing=packing))
    some = made((read.append(text) or text for text in little.TEXTS), words, length=12,
                packing=packing, limit=5)  # fmt: skip
    assert rows(some) == whole[:5]
    assert len(read) < 12


def test_batches_are_padded_to_one_width_whatever_is_in_them(words, framing):
    found = made(little.TEXTS, framing, length=40, packing="each")
    some = found.collate([found[3], found[7]])
    assert some["input_ids"].shape == (2, max(map(len, rows(found))))
    for row, mask, i in zip(some["input_ids"], some["attention_mask"], (3, 7), strict=True):
        assert torch.equal(row[mask == 1], found[i]["input_ids"])
        assert (row[mask == 0] == framing.pad_token_id).all()
        assert mask.sum() == len(found[i]["input_ids"])
    unpadded = made(little.TEXTS, words, length=12)  # by a tokenizer without such a token
    last = unpadded.collate([unpadded[len(unpadded) - 1]])
    assert last["input_ids"].shape == (1, 12)
    assert 0 < last["attention_mask"].sum() < 12


def test_the_loader_is_taken_in_the_seeded_order(words):
    import resemblance as rs

    data = tokenize_texts(Texts("some", little.TEXTS), words, length=24, packing="each")
    rep = rs.record(little.gpt2(), data, tokens=3, tokenizer=words, buckets=0)
    assert (rep.data.order, rep.samples) == ("seeded", 120)


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ([], {"length": 8}, "no text in some: expected at least one token"),
        (["", " "], {"length": 8}, "no text in some"),
        (["<|end|>"], {"length": 8}, "no text in some"),
        (["a"], {"length": 1}, "no room for text after 0 special tokens; use `length=2"),
    ],
)
def test_what_makes_no_sequence(words, texts, options, message):
    with pytest.raises(DataError, match=message):
        made(texts, words, **options)


def test_special_tokens_need_room(framing):
    with pytest.raises(DataError, match="after 2 special tokens; use `length=4`"):
        made(["a"], framing, length=3)


def test_options():
    with pytest.raises(DataError, match="`packing` must be packed or each; found 'both'"):
        TextOptions(packing="both")
    assert tokenized_text_of([1, 2]) is None


ROWS = [{"id": str(i), "text": f"text {i}\nof two lines", "n": i} for i in range(5)]
EXPECTED = [row["text"] for row in ROWS]


def written(path: Path, rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_a_txt_file_is_one_running_text_or_a_text_a_line(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\r\n\r\ntwo é\nthree".encode())
    texts = texts_from_file(path)
    assert (list(texts.pieces), texts.running, texts.name) == (
        ["one\n\ntwo é\nthree"],
        True,
        str(path),
    )
    lines = texts_from_file(path, lines=True)
    assert (list(lines.pieces), lines.running) == (["one", "", "two é", "three"], False)
    monkeypatch.setattr(text, "_CHARS_PER_READ", 2)
    assert list(texts_from_file(path).pieces) == ["one\n", "\ntwo é\n", "three"]


def test_rows_hold_their_text_in_a_field(tmp_path):
    path = written(tmp_path / "a.jsonl", ROWS)
    texts = texts_from_file(path)
    assert (list(texts.pieces), texts.running) == (EXPECTED, False)
    assert texts.name == f"{path} (text)"
    assert list(texts_from_file(path, "id").pieces) == [str(i) for i in range(5)]
    only = written(tmp_path / "b.jsonl", [{"n": 1, "words": "a"}, {"n": 2, "words": None}])
    assert list(texts_from_file(only).pieces) == ["a", ""]


@pytest.mark.parametrize(
    ("row", "field", "message"),
    [
        ({"text": "a"}, "txt", r"has no field 'txt'; nearest: text"),
        (
            {"text": "a", "n": 1},
            "n",
            r"'n' of .* holds no text; set `text_field` to .*: text",
        ),
        ({"a": "a", "b": "b"}, None, r"found the fields a, b in .*`text_field` .*: a, b"),
        ({"n": 1}, None, r"found the fields n in .*; expected one of text"),
    ],
)
def test_a_wrong_field(tmp_path, row, field, message):
    with pytest.raises(DataError, match=message):
        texts_from_file(written(tmp_path / "a.jsonl", [row]), field)


@pytest.mark.parametrize(
    ("content", "kind", "message"),
    [
        ('{"text": "a"}\n{"text": ', FormatError, "line 2 of .* is not JSON"),
        ('{"text": "a"}\n\n[1]\n', FormatError, "expected an object in line 3 of .*, found list"),
        ('{"text": "a"}\n{"text": 3}\n', DataError, "as 'text' in line 2 of .*, found int"),
        ('{"text": "a"}\n{"texts": "b"}\n', DataError, "in line 2 of .*, found no such field"),
        ("\n \n", DataError, "is empty: expected an object"),
    ],
)
def test_lines_that_are_no_rows(tmp_path, content, kind, message):
    path = tmp_path / "a.jsonl"
    path.write_text(content)
    with pytest.raises(kind, match=message):
        list(texts_from_file(path).pieces)


def test_a_txt_file_has_no_fields_and_is_utf_8(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"caf\xe9")
    with pytest.raises(FormatError, match="is not UTF-8 text"):
        list(texts_from_file(path).pieces)
    with pytest.raises(DataError, match="has no field 'text': it is plain text"):
        texts_from_file(path, "text")


def test_a_table_of_the_library_datasets():
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_list([*ROWS, {"id": "5", "text": None, "n": 5}])
    texts = texts_from_table(table, "some")
    assert (list(texts.pieces), texts.name) == ([*EXPECTED, ""], "some (text)")
    with pytest.raises(DataError, match="'n' of some holds no text"):
        texts_from_table(table, "some", "n")
