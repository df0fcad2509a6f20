"""Hashes tell the same samples from different ones; keys are samples' own indices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import networks
from resemblance._data import sample_hashes
from resemblance._data.sample_hashes import (
    PendingHashes,
    SampleHasher,
    index_of_key,
    refuse_duplicate,
)
from resemblance.errors import DataError

X = torch.randn(6, 3, 20, 20, generator=torch.Generator().manual_seed(0))


def hashing(*batches):
    reader = SampleHasher()
    return reader.hashing([reader.read(batch) for batch in batches])


def of_samples(batch):
    """The hash by which samples without a name are known."""
    return hashing(batch).hashes("known_by")


def test_equal_samples_have_equal_hashes_in_any_batch():
    whole = of_samples(X)
    parts = np.concatenate([of_samples(part) for part in X.split(2)])
    assert (whole == parts).all()
    assert len(set(whole.tolist())) == 6


def test_holder_and_labels_do_not_matter():
    y = torch.arange(6)
    for batch in (X.numpy(), (X, y), [X], (X, y + 1), {"x": X}, {"x": X, "labels": y}):
        assert (of_samples(batch) == of_samples(X)).all()


def test_a_changed_value_changes_the_hash_of_its_sample_alone():
    changed = X.clone()
    changed[2] += 1e-6
    assert np.flatnonzero(of_samples(changed) != of_samples(X)) == [2]


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.uint8, torch.bool]
)
def test_every_dtype_has_a_hash(dtype):
    x = (X[:, 0, 0].clamp_min(0) * 10).to(dtype)
    assert len(set(of_samples(x).tolist())) > 1


def test_texts_have_hashes():
    a, b, c = of_samples(["one", "two", "one"]).tolist()
    assert a == c != b


def test_padding_does_not_matter():
    batch = networks.tokens(5, length=6)
    wide = {key: torch.nn.functional.pad(value, (0, 3)) for key, value in batch.items()}
    left = {key: torch.nn.functional.pad(value, (2, 0)) for key, value in batch.items()}
    other = {**wide, "input_ids": wide["input_ids"] + 7 * (1 - wide["attention_mask"])}
    for same in (wide, left, other):
        assert (of_samples(same) == of_samples(batch)).all()
    changed = {**batch, "input_ids": batch["input_ids"] + batch["attention_mask"]}
    assert (of_samples(changed) != of_samples(batch)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_sums_that_a_device_makes_give_the_same_hashes(dtype):
    """Here on the host: what is sent home of a GPU is what it would have given."""
    x = (10 * X).clamp_min(0).to(dtype)
    few, tokens = networks.tokens(6, length=5), torch.arange(12).view(6, 2)[:, :1]
    batch = {"x": x, "y": X[:, 0, 0, :7].to(dtype), **few}
    reader = SampleHasher()
    read = reader.read((batch, tokens))
    here = reader.hashing([read])
    there = PendingHashes(
        6, {what: [reader._sums(x) for x in parts] for what, parts in read.words.items()}
    )
    for what in ("known_by", "content", "labels"):
        assert len(set(here.hashes(what).tolist())) == 6
        assert (there.hashes(what) == here.hashes(what)).all()


def test_memory_order_and_places_in_memory_do_not_matter():
    last = X.to(memory_format=torch.channels_last)
    assert (of_samples(last) == of_samples(X)).all()
    row = torch.arange(25, dtype=torch.uint8)
    shifted, fresh = row[1:].view(3, 8), row[1:].clone().view(3, 8)
    assert (of_samples(shifted) == of_samples(fresh)).all()


@pytest.mark.parametrize("width", [5, 6, 400])
def test_what_the_model_writes_into_its_inputs_is_not_hashed(width):
    x = X.flatten(1)[:, :width].clone()
    reader, before = SampleHasher(), of_samples(x)
    read = reader.read(x)
    x.zero_()
    assert (reader.hashing([read]).hashes("known_by") == before).all()


def test_batches_that_are_hashed_together_have_the_hashes_of_each():
    batches = [
        ({"x": part, "ids": part[:, 0, 0, :3].half()}, part[:, 0, 0, 0]) for part in X.split(4)
    ]
    together = hashing(*batches)
    for what in ("known_by", "content", "labels"):
        apart = np.concatenate([hashing(batch).hashes(what) for batch in batches])
        assert (together.hashes(what) == apart).all()
    forms = [SampleHasher().read(batch).form for batch in (X[:2], X[:4], X[:, 0, 0], (X, X[:, 0]))]
    assert forms[0] == forms[1] != forms[2] != forms[0] != forms[3]


def test_parts_of_samples_without_a_value_are_passed_over():
    assert (of_samples({"x": X, "none": torch.zeros(6, 0)}) == of_samples(X)).all()


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.uint16, torch.complex64, torch.complex128], ids=str
)
def test_dtypes_that_torch_computes_little_with(dtype):
    x = (X[:, 0, 0].clamp_min(0) * 10).to(dtype)
    assert len(set(of_samples(x).tolist())) == 6
    if x.is_complex():
        assert (of_samples(x.conj()) == of_samples(x.conj().resolve_conj())).all()


def test_an_index_is_a_function_of_the_key_for_ever():
    assert index_of_key("cats/0001") == 4962744157676639374
    many = {index_of_key(str(i)) for i in range(10_000)}
    assert len(many) == 10_000
    assert min(many) >= 0
    assert 2**62 < max(many) < 2**63


def test_names_that_are_no_text_have_an_index():
    assert index_of_key("\udcff") != index_of_key("\udcfe")


def test_a_key_that_comes_twice_is_refused(monkeypatch):
    monkeypatch.setattr(sample_hashes, "_MAX_REMEMBERED_KEYS", 2)
    seen = set()
    for index in (1, 2, 3, 3):  # the third is not remembered any more
        refuse_duplicate(index, "x", seen)
    with pytest.raises(DataError, match=r"duplicate sample key 0001 in b\\x1b"):
        refuse_duplicate(2, "0001 in b\x1b", seen)
