"""Data are opened once for all networks that can share them."""

from __future__ import annotations

import pytest
import torch

from little_language import SENTENCES, gpt2, saved, tokenizer
from noting_networks import notes
from optional_libraries import needs
from resemblance.errors import DataError
from resemblance.sweep.shared_data import SharedData


def test_one_data_set_is_held_at_a_time(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked, _ = made("models: [nets.py:one, nets.py:two]\ndata: [nets.py:x, nets.py:y]")
    one_x, two_x, one_y, two_y = asked.pairs
    shared = SharedData()
    assert shared.of(one_x) is shared.of(two_x)
    y = shared.of(two_y)
    assert shared.of(one_y) is y
    assert not torch.equal(y, shared.of(one_x))  # opened anew
    assert [what for what, _ in notes(tmp_path)] == ["x", "y", "x"]


def test_other_options_are_other_data(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked, _ = made("models: nets.py:one\ndata: {a: nets.py:x, b: {data: nets.py:x, limit: 9}}")
    shared = SharedData()
    assert [len(shared.of(pair)) for pair in asked.pairs] == [96, 9]


def test_what_can_be_read_once_is_read_again(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked, _ = made("models: [nets.py:one, nets.py:two]\ndata: nets.py:stream")
    shared = SharedData()
    assert [sum(map(len, shared.of(pair))) for pair in asked.pairs] == [96, 96]


@needs("transformers")
def test_networks_share_tokens_if_their_tokenizers_make_the_same(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "a", gpt2(), tokenizer())
    saved(tmp_path / "b", gpt2(seed=1), tokenizer())
    saved(tmp_path / "c", gpt2(), tokenizer(vocabulary=280))
    (tmp_path / "t.txt").write_text("\n".join(SENTENCES))
    asked, _ = made("models: [hf:a, hf:b, hf:c, nets.py:one]\ndata: {t: {data: t.txt, length: 8}}")
    a, b, c, none = asked.pairs
    shared = SharedData()
    of_a = shared.of(a)
    assert shared.of(b) is of_a
    assert shared.of(c) is not of_a
    with pytest.raises(DataError, match="holds text, which needs a model hf:NAME"):
        shared.of(none)
