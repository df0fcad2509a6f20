"""Texts as sequences of tokens: nothing lost, nothing moved, and what is cut is counted."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import little_language as little
from resemblance._data import tokenized_text
from resemblance._data.text_files import Texts
from resemblance._data.tokenized_text import TextOptions, TokenizedText, sequences_in, tokenized
from resemblance.errors import DataError

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def words():
    return little.tokenizer()


@pytest.fixture(scope="module")
def framing():
    return little.framing_tokenizer()


def made(texts, tokenizer, running=False, **options) -> TokenizedText:
    found = sequences_in(tokenized(Texts("some", texts, running), tokenizer, **options))
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
    monkeypatch.setattr(tokenized_text, "_GROUP", 100)
    monkeypatch.setattr(tokenized_text, "_LOOKED_AT", 7)
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

    data = tokenized(Texts("some", little.TEXTS), words, length=24, packing="each")
    rep = rs.record(little.gpt2(), data, tokens=3, tokenizer=words, buckets=0)
    assert (rep.data.order, rep.samples) == ("seeded", 120)


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ([], {"length": 8}, "no text in some: expected at least one token"),
        (["", " "], {"length": 8}, "no text in some"),
        (["<|end|>"], {"length": 8}, "no text in some"),
        (["a"], {"length": 1}, "no room for text beside 0 special tokens; use a --length of 2"),
    ],
)
def test_what_makes_no_sequence(words, texts, options, message):
    with pytest.raises(DataError, match=message):
        made(texts, words, **options)


def test_special_tokens_need_room(framing):
    with pytest.raises(DataError, match="beside 2 special tokens; use a --length of 4 or more"):
        made(["a"], framing, length=3)


def test_options():
    with pytest.raises(DataError, match="--packing must be packed or each; found 'both'"):
        TextOptions(packing="both")
    assert sequences_in([1, 2]) is None
